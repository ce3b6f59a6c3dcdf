"""SPFL: synchronous personalized FL with stage-wise normalized gradient similarity (SNGS).

The server keeps a model w_i per client. Every Gamma rounds it averages them (a refresh), and all
clients train once from the mean only to measure, for body and head apart, how similar their updates
are. `spfl_w` mixes models instead of updates.

    S_ij = cos(g_i, g_j),   St_ij = exp(S_ij) / sum_k exp(S_ik)
    w_i <- w_i - eta sum_j St_ij g_j      in every round, g the updates of that round

Defaults are the paper's (Gamma 10, lr 0.01, batches of 128) and the code's (weight decay 1e-4).
Where paper and code disagree: the paper's step alpha n_j/n St cannot learn in 100 rounds; the code
moves by St alone (default; `weights` has the others). The code keeps each client's own head update
(head='own'); the paper mixes every stage (default). The code adds up the cosines of the body's
layers and leaves biases out of every cosine: similarity='layers'. "Two-step" means two SGD steps on
each mini-batch, not one of twice the size. Both trainings of a refresh start from the mean.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Down, Ids, Local, Net, Server, SgdMethod, Table, Ups, hyper
from idiolect.core.tree import Record, Tree
from idiolect.methods.shared import sngs

SOFT = "similarity=cosine|layers"  # where there is a softmax


@dataclass(frozen=True)
class SPFL(SgdMethod):
    """One model per client, moved along similar clients' updates."""

    batch_size: int | Literal["full"] = hyper(128)
    weight_decay: float = hyper(1e-4)
    two_step: bool = hyper(True, "two consecutive SGD steps on every mini-batch")
    gamma: int = hyper(10, "rounds between refreshes of the similarity", min=1)
    stages: Literal[1, 2, "tensor"] = hyper(2, "1 whole model, 2 body and head, or per tensor")
    similarity: Literal["cosine", "layers", "uniform", "identity"] = hyper(
        "cosine", "of stages, of the layers in them, or an ablation", needs="layers: stages=2"
    )
    layer_weights: str = hyper("0.5,0.3,0.2", "of the body's layers", needs="similarity=layers")
    temperature: float = hyper(1.0, "of stages but the last", above=0, needs=f"{SOFT}, stages!=1")
    head_temperature: float = hyper(1.0, "of the last one", above=0, needs=f"{SOFT}, head=softmax")
    head: Literal["softmax", "own"] = hyper(
        "softmax", "last stage mixed, or each its own update", needs="similarity!=identity"
    )
    weights: Literal["softmax", "data_weighted", "literal"] = hyper(
        "softmax", "St; n_j St renormalised; or the paper's alpha n_j/n St", needs=SOFT
    )
    alpha: float = hyper(0.01, "the paper's server step", min=0, needs="weights=literal")
    eta: float = hyper(1.0, "server step", min=0)
    refresh_average: bool = hyper(True, "erase personalization at a refresh (the mean to all)")

    name = "spfl"
    paper = "Personalized Heterogeneous FL with Gradient Similarity"
    year = 2022
    personal_part = "the whole model (kept by the server), BatchNorm statistics"
    traffic = "2 (3 at a refresh)"
    rounds_default = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        sngs.shares(self.layer_weights)

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        return {"models": Table(tree.pick(start, net.weights)), "cosine": {}}

    def client_init(self, start: Tree, local: Local) -> Record:
        return {"stats": tree.pick(start, local.net.stats)}

    def prepare(self, server: Server, who: Ids) -> None:
        if server.round % self.gamma == 0 and self.refresh_average:
            everyone = list(server.sizes)
            total = server["models"].mix([1.0] * len(everyone), everyone)
            mean = tree.apply(lambda w: w / len(everyone), total)
            server["models"][everyone] = tree.expand(mean, len(everyone))

    def download(self, server: Server, who: Ids) -> Down:
        return Down(each={"model": server["models"][who]})

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        start = down["model"] | mine["stats"]
        repeat = 2 if self.two_step else 1
        up = {}
        if local.round % self.gamma == 0:  # this training only measures similarity
            probe = self.train(local, start, repeat=repeat, purpose="similarity", report=False)
            up["probe"] = tree.sub(down["model"], probe)
        model = self.train(local, start, repeat=repeat)
        up["update"] = tree.sub(down["model"], model)
        return up, {"stats": tree.pick(model, local.net.stats)}

    def aggregate(self, server: Server, ups: Ups) -> None:
        if "probe" in ups:
            self._measure(server, ups)
        server["models"][ups.ids] = self._moved(server, ups, server["models"][ups.ids])

    def _moved(self, server: Server, ups: Ups, before: Tree) -> Tree:
        after: Tree = {}
        stages = server.net.stages(self.stages)
        for s, names in enumerate(stages):
            c = self._mixing(server, ups, s, last=names == stages[-1])
            server.log_clients(ups.ids, ups.ids, **{f"mixing_{s}": c})
            after |= self._move(c, tree.pick(before, names), tree.pick(ups["update"], names))
        return {n: after[n] for n in before}

    def _move(self, c: Tensor, w: Tree, update: Tree) -> Tree:
        return tree.sub(w, tree.scale(tree.mix(c, update), self.eta))

    def _measure(self, server: Server, ups: Ups) -> None:
        stages = server.net.stages(self.stages)
        for s, names in enumerate(stages):
            probe = tree.pick(ups["probe"], names)
            if self.similarity != "layers" or self.stages != 2:
                measured = tree.cosines(probe)
            elif names == stages[-1]:  # as published: biases do not count, the head's neither
                measured = tree.cosines(sngs.layers_of(probe))
            else:
                measured = sngs.by_layers(sngs.layers_of(probe), sngs.shares(self.layer_weights))
            sngs.learn(server, ups, s, measured)

    def _mixing(self, server: Server, ups: Ups, stage: int, last: bool) -> Tensor:
        """Row i: how much client i takes of each arrival (c_ij)."""
        eye = torch.diag(torch.ones_like(ups.sizes))
        if self.similarity == "identity" or (last and self.head == "own"):
            return eye
        if self.similarity == "uniform":
            return torch.full_like(eye, 1 / len(ups))
        temperature = self.head_temperature if last else self.temperature
        soft = torch.softmax(sngs.among(server, ups, stage) / temperature, 1)
        if self.weights == "softmax":
            return soft
        weighted = ups.share * soft
        if self.weights == "literal":
            return self.alpha * weighted
        return weighted / weighted.sum(1, keepdim=True)

    def personal(self, down: Record, mine: Record) -> Tree:
        return down["model"] | mine["stats"]

    def trained(self, down: Record, up: Record, mine: Record) -> Tree:
        return tree.sub(down["model"], up["update"]) | mine["stats"]
