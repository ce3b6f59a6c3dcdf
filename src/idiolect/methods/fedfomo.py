"""FedFomo (Zhang et al., ICLR 2021): first-order model optimization.

A client downloads M other clients' models and weighs each by how much it improves its own
validation loss per distance, compared with the model it started its last training from:

    w_n = (L_i(theta_i') - L_i(theta_n)) / |theta_n - theta_i'|,   then max(w_n, 0), normalised
    theta_i = theta_i' + sum_n w_n (theta_n - theta_i') = sum_n w_n theta_n

Its own last trained model is one of the candidates and costs no download. Where no candidate is
better the client goes on with that one. It predicts with the model it trained last: it mixes, and
trains from there, when it is asked again. The server keeps an affinity matrix, `P_i += w` of the
raw weights clients report, and sends each the M models of highest affinity; each of the M is drawn
at random instead with probability epsilon - decay * round.

The validation part is a keyed share of the client's training samples, never trained on (20 %, as in
the code). Where paper and code disagree: the code's M counts the client's own model, here M are
downloaded (traffic 1 + M). The code's distance is an L1 norm by default, the paper's Euclidean.
A number drawn by a client seeds the server's random choices, so that they can be repeated.
BatchNorm statistics travel with the models.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Down, Ids, Local, Net, Server, SgdMethod, Table, Ups, hyper
from idiolect.core.tree import Record, Tree
from idiolect.methods.shared import holdout


@dataclass(frozen=True)
class FedFomo(SgdMethod):
    """Every client mixes the models that help it most on its own validation samples."""

    models: int = hyper(5, "M: models downloaded by each client", min=0)
    val_share: float = hyper(0.2, "own samples kept for judging (0: judge on all)", min=0, below=1)
    epsilon: float = hyper(0.3, "chance of random models at first", min=0, max=1, needs="models!=0")
    epsilon_decay: float = hyper(0.05, "its fall per round", min=0, needs="epsilon!=0, models!=0")
    weights: Literal["first_order", "uniform", "identity"] = hyper(
        "first_order", "of the candidates, or an ablation"
    )

    name = "fedfomo"
    paper = "Zhang et al., Personalized FL with First Order Model Optimization"
    year = 2021
    personal_part = "the whole model (mixed by the client)"
    traffic = "1 + M"
    also_sent = ("model: all", "personal: all")  # mixed by the clients

    @property
    def revision(self) -> int:
        return 2 if self.val_share else 1  # judged samples went through training with weight zero

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        like, n = tree.any_leaf(start), len(clients)
        draws = {"lot": like.new_zeros(()), "affinity": like.new_zeros(n, n)}
        return {"models": Table({"model": start}), **draws}

    def client_init(self, start: Tree, local: Local) -> Record:
        return {"model": start, "previous": start}

    def chosen(self, server: Server) -> Tensor:
        """`[N, M]`: whose models each client is sent, as positions in the list of clients."""
        n, affinity = len(server.clients), server["affinity"]
        dice = torch.Generator().manual_seed(int(server["lot"] * 2**31))
        lots, risk = tree.beside(torch.rand(2, n, n, generator=dice), affinity)
        count = min(self.models, n - 1)
        epsilon = self.epsilon - self.epsilon_decay * server.round
        drawn = (risk[:, :count] < epsilon).sum(1, keepdim=True)
        order = lots.fill_diagonal_(-1).argsort(1, descending=True)  # oneself last
        affinity = affinity.clone().fill_diagonal_(-torch.inf).gather(1, order)
        affinity = affinity.masked_fill(tree.beside(range(n), affinity) < drawn, torch.inf)
        best = affinity.argsort(dim=1, descending=True, stable=True)  # equal: by lot
        return order.gather(1, best)[:, :count]

    def download(self, server: Server, who: Ids) -> Down:
        ids, at = server.clients, server.position
        chosen = self.chosen(server)[[at.get(i, i % len(ids)) for i in who]]
        if not chosen.shape[1]:
            return Down()
        models = server["models"][[ids[j] for j in chosen.flatten().tolist()]]["model"]
        return Down(each={"models": {n: v.unflatten(0, chosen.shape) for n, v in models.items()}})

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        judged, trained_on = holdout.split(local, self.val_share, "fedfomo")
        candidates = {n: v[:, None] for n, v in mine["model"].items()}
        if "models" in down:
            candidates = tree.apply(lambda a, b: torch.cat([a, b], 1), candidates, down["models"])
        raw = self.first_order(judged, mine["previous"], candidates)
        weight = self.normalised(raw)
        local.log(own_weight=weight[:, 0])  # the server shows how the others share the rest
        start = tree.blend(weight, candidates)
        model = self.train(trained_on, start)
        lot = local.uniform((), f"fedfomo/{local.round}")
        up = {"model": model, "weight": raw[:, 1:], "lot": lot}
        return up, {"model": model, "previous": start}

    def first_order(self, judged: Local, previous: Tree, candidates: Tree) -> Tensor:
        """Raw `w_n` `[K, 1 + M]`, the own model first."""
        before, raw = holdout.loss(judged, previous), []
        for m in range(tree.any_leaf(candidates).shape[1]):
            model = {n: v[:, m] for n, v in candidates.items()}
            step = tree.pick(tree.sub(model, previous), judged.net.weights)
            length = tree.dot(step, step).sqrt()
            gain = before - holdout.loss(judged, model)
            raw.append(torch.where(length > 0, gain / length.clamp_min(1e-30), 0.0))
        return torch.stack(raw, 1)

    def normalised(self, raw: Tensor) -> Tensor:
        own = torch.zeros_like(raw)
        own[:, 0] = 1
        if self.weights == "identity":
            return own
        positive = torch.ones_like(raw) if self.weights == "uniform" else raw.clamp_min(0)
        total = positive.sum(1, keepdim=True)
        return torch.where(total > 0, positive / total.clamp_min(1e-30), own)

    def aggregate(self, server: Server, ups: Ups) -> None:
        at = server.position
        rows = tree.beside([at[i] for i in ups.ids], ups.sizes)
        to = self.chosen(server)[rows]
        fresh = server["affinity"].clone()
        fresh[rows[:, None], to] += ups["weight"]
        server["affinity"], server["lot"] = fresh, ups["lot"][0]
        server["models"][ups.ids] = {"model": ups["model"]}
        server.log_clients(server.clients, server.clients, affinity=fresh)
        positive = ups["weight"].clamp_min(0)
        share = positive / positive.sum(1, keepdim=True).clamp_min(1e-30)
        chosen = torch.zeros_like(fresh[rows]).scatter(1, to, share.to(fresh.dtype))
        server.log_clients(ups.ids, server.clients, aggregation_weight=chosen)

    def personal(self, down: Record, mine: Record) -> Tree:
        return mine["model"]
