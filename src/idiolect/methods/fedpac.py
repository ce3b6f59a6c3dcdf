"""FedPAC (Xu, Tong and Huang, ICLR 2023): feature alignment and classifier collaboration.

A client trains its head for a short while, then the body with features drawn to the global class
centroids (the loss is FedProto's). Bodies and centroids are averaged by sample count. Heads are
combined for every client: alpha_i minimizes, on the simplex, the variance and the bias of a head
made for client i out of everybody's,

    sum_j alpha_j^2 v_j + |sum_j alpha_j (h_i - h_j)|^2,

h_j the class means of the features under the received body times the class shares, v_j their
variance over n_j. The server solves the m small problems at once (`simplex`).

Where paper and code disagree: the code drops weights below 1e-3 and renormalises, not here. Its
covariance is scaled as here. Classes without a global centroid are drawn to the client's own mean
before training, and nothing is drawn in the first round (both from the code).
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.local import Local
from idiolect.core.method import Down, Ids, Net, Server, SgdMethod, Table, Ups, features, hyper
from idiolect.core.tree import Record, Tree
from idiolect.methods.shared.prototypes import aligned, class_average
from idiolect.methods.shared.simplex import combination


@dataclass(frozen=True)
class FedPAC(SgdMethod):
    """Aligned features, and for every client its own combination of the clients' heads."""

    epochs: int = hyper(5, "passes over the data for the body, after the head")
    batch_size: int | Literal["full"] = hyper(50)
    momentum: float = hyper(0.5, "momentum of local SGD, forgotten after every phase")
    weight_decay: float = hyper(5e-4)
    head_lr: float = hyper(0.1, "learning rate of the head", above=0)
    head_epochs: int = hyper(1, "passes over the data for the head, before the body", min=1)
    lam: float = hyper(1.0, "lambda: pull of features to the global centroids", min=0)
    combine: bool = hyper(True, "combine heads, else every client keeps its own")

    name = "fedpac"
    needs_classes = True
    fixed_loss = True
    paper = "Xu et al., Personalized FL with Feature Alignment and Classifier Coll."
    year = 2023
    personal_part = "the head (combined by the server)"
    traffic = "2 and 3 class means"
    rounds_default = 200

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        weight = start[net.linear_head()[0]]
        return {
            "base": tree.drop(start, net.head),
            "heads": Table(tree.pick(start, net.head)),
            "centroids": torch.zeros_like(weight),
            "known": torch.zeros_like(weight[:, 0], dtype=torch.bool),
        }

    def download(self, server: Server, who: Ids) -> Down:
        shared = {part: server[part] for part in ("base", "centroids", "known")}
        return Down(shared, each={"head": server["heads"][who]})

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        base, head, known = down["base"], down["head"], down["known"]
        means, statistics = self._statistics(base | head, local)
        how: dict[str, Any] = {"epochs": self.head_epochs, "steps": 0, "purpose": "head"}
        how["lr"] = self.head_lr * self.lr_factor(local.round)
        model = self.train(local, base | head, train=head, **how)
        target = torch.where(known[..., None], down["centroids"], means)
        pull = local.each(self.lam)[:, None] * known.any(1, keepdim=True).expand_as(known)
        model = self.train(local, model, aligned, extra=(target, pull), train=base)
        up = {
            "base": tree.pick(model, base),
            "head": tree.pick(model, head),
            "centroids": local.class_mean(local.forward(features, model)),
            "counts": local.counts,
        }
        return up | statistics, mine

    def _statistics(self, model: Tree, local: Local) -> tuple[Tensor, Record]:
        """Class means of the features [K, C, D], and h and v."""
        rows = local.forward(features, model)
        means = local.class_mean(rows)
        squares = local.class_mean(local.rows(rows.values.square().sum(1, keepdim=True)))
        share = (local.counts / local.sizes[:, None]).to(means.dtype)[..., None]
        h = share * means
        v = ((share * squares).sum((1, 2)) - h.square().sum((1, 2))) / local.sizes
        return means, {"h": h, "v": v}

    def aggregate(self, server: Server, ups: Ups) -> None:
        server["base"] = tree.mix(ups.share, ups["base"])
        counts = ups["counts"]
        server["centroids"] = class_average(ups["centroids"], counts, server["centroids"])
        server["known"] = server["known"] | (counts > 0).any(0)
        heads = ups["head"]
        if self.combine:
            alpha = combination(ups["v"], ups["h"])
            server.log_clients(ups.ids, ups.ids, head_weight=alpha)
            heads = tree.mix(alpha, heads)
        server["heads"][ups.ids] = heads

    def personal(self, down: Record, mine: Record) -> Tree:
        return down["base"] | down["head"]
