"""LGA: leap gradient approximation for stragglers (asynchronous).

A straggler trained `w_k` from `w_0`; meanwhile the global model went from `w_1` (the first
aggregate without it) to `w_t`. Before its late work is averaged, it leaps over what it missed:

    S = cos(w_1 - w_0, w_k - w_0),   St = e^S / (e + e^S)                        (8), (13)
    what = w_t + St (w_k - w_0) * (w_k - w_0) * (w_t - w_1) + (w_k - w_0)        (11)

with `w_0` instead of the leading `w_t` in Eq. (10). All arrivals are averaged by sample count.

Where paper and code disagree: the code weighs by the raw cosine per tensor (`weight='cosine'`,
`stages='tensor'`); it averages by samples where the paper writes a plain mean (`weighting`). For
p = 1 the code leaves w_1 at the initial model; here it is w_t, and the leap vanishes.

Defaults are the paper's: 20 mini-batches of 64 per round, lr 0.001 (see `fedavg_async`).
"""

from dataclasses import dataclass
from typing import Literal

import torch

from idiolect.core import tree
from idiolect.core.method import Down, Ids, Local, Net, Record, Server, Tree, Ups, hyper
from idiolect.methods.fedavg_async import FedAvgAsync


@dataclass(frozen=True)
class LGA(FedAvgAsync):
    """Stragglers leap to the present before they are averaged."""

    equation: Literal[11, 10] = hyper(11, "leap from the present (11) or the old (10) global model")
    weight: Literal["softmax", "cosine"] = hyper("softmax", "St, or the raw cosine of the code")
    stages: Literal[2, 1, "tensor"] = hyper(2, "similarity of body and head, whole, or per tensor")

    name = "lga"
    paper = "Personalized Heterogeneous FL with Gradient Similarity"
    year = 2022
    traffic = "2 (4 when late)"
    also_sent = ("wk: weights",)  # the leap starts from it

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        return {"model": tree.pick(start, net.weights), "past": {}}

    def client_init(self, start: Tree, local: Local) -> Record:
        weights = tree.pick(start, local.net.weights)
        stats = tree.pick(start, local.net.stats)
        return super().client_init(start, local) | {"w0": weights, "wk": weights, "stats": stats}

    def download_late(self, server: Server, who: Ids, since: Ids) -> Down:
        down = self.download(server, who)
        first = tree.pile([server["past"][str(s)] for s in since])  # w_1 of each straggler
        return Down(down.shared, each={"first": first})

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        up, kept = super().fit({"model": down["model"] | mine["stats"]}, mine, local)
        wk, stats = (tree.pick(up["model"], of) for of in (local.net.weights, local.net.stats))
        return {"model": wk}, kept | {"w0": down["model"], "wk": wk, "stats": stats}

    def rejoin(self, down: Record, mine: Record, up: Record, local: Local) -> tuple[Record, Record]:
        return {"model": self.leap(down, mine, local)}, mine

    def leap(self, down: Record, mine: Record, local: Local) -> Tree:
        """`what` of Eq. 10 or 11."""
        w0, wk, w1, wt = mine["w0"], mine["wk"], down["first"], down["model"]
        moved, missed = tree.sub(wk, w0), tree.sub(wt, w1)
        cosine = self.cosine(tree.sub(w1, w0), moved, local.net)
        self.show(cosine, local)
        weight = cosine if self.weight == "cosine" else self.softmaxed(cosine)
        bend = {n: weight[n] * moved[n] * moved[n] * missed[n] for n in moved}
        return tree.add(tree.add(wt if self.equation == 11 else w0, bend), moved)

    def cosine(self, a: Tree, b: Tree, net: Net) -> Tree:
        """Cosine of every client's stage, spread over the stage's leaves (8)."""
        spread: Tree = {}
        for names in net.stages(self.stages):
            value = tree.cosine(tree.pick(a, names), tree.pick(b, names))
            spread |= {n: tree.column(value, a[n]) for n in names}
        return spread

    def show(self, cosine: Tree, local: Local) -> None:
        """S and St of every client and stage."""
        first = [names[0] for names in local.net.stages(self.stages)]  # all of a stage are alike
        S = torch.stack([cosine[n].flatten() for n in first], 1)
        local.log(S=S, St=torch.sigmoid(S - 1))

    @staticmethod
    def softmaxed(cosine: Tree) -> Tree:
        """St of (13): softmax of S against 1, between 0.1192 and 0.5."""
        return {n: torch.sigmoid(s - 1) for n, s in cosine.items()}

    def aggregate(self, server: Server, ups: Ups) -> None:
        super().aggregate(server, ups)
        waiting = {str(s) for s in ups.away}
        if ups.round in ups.away:  # w_1 of those who started in this round and are late
            server["past"][str(ups.round)] = server["model"]
        server["past"] = {s: w for s, w in server["past"].items() if s in waiting}

    def personal(self, down: Record, mine: Record) -> Tree:
        return down["model"] | mine["stats"]
