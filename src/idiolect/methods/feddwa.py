"""FedDWA (Liu et al., IJCAI 2023): personalized aggregation with dynamic weight adjustment.

A client trains its personalized model w_i, goes "one step ahead" of it to a guidance model w_i*,
sends both and throws w_i* away. The server gives each participant the mixture of the participants'
models that is closest to its guidance:

    p_ij = d_ij^-1 / sum_k d_ik^-1,   d_ij = |w_i* - w_j|^2,   w_i <- sum_j p_ij w_j

over the K largest of row i. Defaults are the paper's: K 5, lr 0.01, batches of 20, one epoch.

Where paper and code disagree: Eq. 16 takes one full gradient step for the guidance, Algorithm 1 one
epoch, the code E epochs; here it is one epoch, `guidance` has the others. The code's "more guidance
epochs" repeats the same start; n_epochs really goes further.

The paper's appendix C.6 tried other guidance, which needs no second upload (traffic 2).
'last_round' is the client's own trained model of the round it was in before (w_1 of Table 6), kept
by the server, or the common start where there was none: the first round's rows are all alike.
'current' is what it trained in this round: the distance to itself is 0, so every client stays on
its own (the paper found it worse). Read without a hat, as the appendix writes it, that is the
mixed model the round began with: 'received'. From a common start its rows stay alike for ever.

A distance of 0 divides by zero in the
code; here such models share the weight. BatchNorm statistics stay on the client, as in the code.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.local import Local
from idiolect.core.method import Down, Ids, Net, Server, SgdMethod, Table, Ups, cross_entropy, hyper
from idiolect.core.tree import Record, Tree

EPS = 1e-12
KNOWN_TO_SERVER = ("last_round", "current", "received")  # guidance that is not sent


@dataclass(frozen=True)
class FedDWA(SgdMethod):
    """Every participant gets its own mixture of the participants' models."""

    batch_size: int | Literal["full"] = hyper(20)
    top_k: int = hyper(5, "models mixed for each client; self competes like any other", min=1)
    guidance: Literal[
        "one_epoch", "n_epochs", "one_batch", "full_gradient", "last_round", "current", "received"
    ] = hyper("one_epoch", "one step ahead, or own model of last round, own now, mixed as received")
    guidance_epochs: int = hyper(1, "epochs of n_epochs", min=1, needs="guidance=n_epochs")

    name = "feddwa"
    paper = "Liu et al., FedDWA: Personalized FL with Dynamic Weight Adjustment"
    year = 2023
    personal_part = "the whole model (mixed by the server), BatchNorm statistics"
    traffic = "3"
    rounds_default = 100

    @property
    def revision(self) -> int:
        # The one full gradient step kept the learning rate of the first round.
        scheduled = self.lr_schedule != "step" or self.lr_decay != 1 or self.lr_warmup > 0
        return 2 if self.guidance == "full_gradient" and scheduled else 1

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        weights = tree.pick(start, net.weights)
        last = {"last": Table(weights)} if self.guidance == "last_round" else {}
        return {"models": Table(weights), **last}

    def client_init(self, start: Tree, local: Local) -> Record:
        return {"stats": tree.pick(start, local.net.stats)}

    def download(self, server: Server, who: Ids) -> Down:
        return Down(each={"model": server["models"][who]})

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        model = self.train(local, down["model"] | mine["stats"])
        up = {"model": tree.pick(model, local.net.weights)}
        if self.guidance not in KNOWN_TO_SERVER:
            up["guidance"] = tree.pick(self._guidance(local, model), local.net.weights)
        return up, {"stats": tree.pick(model, local.net.stats)}

    def _guidance(self, local: Local, model: Tree) -> Tree:
        if self.guidance == "full_gradient":  # Eq. 16
            gradient, _, _ = local.grad(cross_entropy, model)
            step = local.each(self.lr * self.lr_factor(local.round))
            return tree.add(tree.pick(model, gradient), tree.scale(gradient, -step))
        epochs = self.guidance_epochs if self.guidance == "n_epochs" else 1
        steps = 1 if self.guidance == "one_batch" else 0
        how: dict[str, Any] = {"epochs": epochs, "steps": steps, "purpose": "guidance"}
        return self.train(local, model, report=False, **how)

    def aggregate(self, server: Server, ups: Ups) -> None:
        distance = tree.square_distances(self._toward(server, ups), ups["model"])
        p = mixing_weights(distance, self.top_k)
        server["models"][ups.ids] = tree.mix(p, ups["model"])
        if self.guidance == "last_round":
            server["last"][ups.ids] = ups["model"]
        server.log_clients(ups.ids, ups.ids, aggregation_weight=p, distance=distance)

    def _toward(self, server: Server, ups: Ups) -> Tree:
        """The guidance models of the arrivals."""
        if self.guidance == "last_round":
            last: Tree = server["last"][ups.ids]
            return last
        if self.guidance == "received":
            received: Tree = server["models"][ups.ids]
            return received
        guidance: Tree = ups["model" if self.guidance == "current" else "guidance"]
        return guidance

    def guidance_model(self, down: Record, up: Record, mine: Record) -> Tree | None:
        """w_i* with the client's statistics; 'last_round' is no longer at the client."""
        sent = {"current": up["model"], "received": down["model"]}
        model = up.get("guidance", sent.get(self.guidance))
        return None if model is None else model | mine["stats"]

    def personal(self, down: Record, mine: Record) -> Tree:
        return down["model"] | mine["stats"]


def mixing_weights(distance: Tensor, top_k: int) -> Tensor:
    """`p_ij = d_ij^-1 / sum_k d_ik^-1` over the K largest of row i (ties: the lower index)."""
    exact = distance == 0
    inverse = 1 / distance.clamp_min(EPS)
    inverse = torch.where(exact.any(1, keepdim=True), exact.to(inverse.dtype), inverse)
    if top_k < len(distance):
        best = torch.sort(inverse, dim=1, descending=True, stable=True).indices[:, :top_k]
        keep = torch.zeros_like(inverse).scatter_(1, best, 1.0)
        inverse = inverse * keep
    return inverse / inverse.sum(1, keepdim=True)
