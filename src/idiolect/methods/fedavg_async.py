"""FedAvg (Async) and FedAsync (Xie et al., 2019), as PLGA's Table 2 compares them.

Late work is used when it arrives. FedAvg (Async) averages it as it is with the models that are on
time, by sample count. FedAsync first pulls a stale model towards the present global one:

    a w_k + (1 - a) w_t,   a = a0 s(staleness),   s = (staleness + 1)^-0.5 (polynomial)

Clients take 20 mini-batches of 64 per round with lr 0.001, and go on where their last round
stopped; these and a0 = 0.8 are PLGA's.

Where papers and code disagree: PLGA's text calls E = 20 local steps in one place, epochs in
Algorithm 2; its code takes 20 mini-batches: `steps` 20 (default), or `steps` 0 and with that 20
`epochs`, which is 37 to 96 times the work on the paper's data. Xie et al. merge every upload as it
comes; PLGA's program, and this one, averages a round's arrivals. In that program the client of
FedAsync does the mixing when its late work arrives and is tested with the result: `mix_at`
'client'; by default the server mixes and the client keeps what it trained.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Down, Ids, Local, Record, Server, Tree, Ups, hyper
from idiolect.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedAvgAsync(FedAvg):
    """Sample-weighted mean of whatever arrives."""

    lr: float = hyper(0.001)
    batch_size: int | Literal["full"] = hyper(64)
    steps: int = hyper(20, "mini-batches per round (PLGA's code); 0: epochs (its Algorithm 2)")
    epochs: int = hyper(20)

    name = "fedavg_async"
    asynchronous = True
    rounds_default = 800

    def client_init(self, start: Tree, local: Local) -> Record:
        return {"cursor": torch.zeros_like(local.sizes, dtype=torch.int64)}

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        model = self.train(local, down["model"], start=mine["cursor"])
        return {"model": model}, {"cursor": mine["cursor"] + self.steps}

    def aggregate(self, server: Server, ups: Ups) -> None:
        if len(ups):
            server["model"] = tree.mix(self.weights(ups), self.arrivals(server, ups))

    def arrivals(self, server: Server, ups: Ups) -> Tree:
        """The models that are averaged."""
        return ups["model"]


@dataclass(frozen=True)
class FedAsync(FedAvgAsync):
    """Stale models are mixed with the global one: `a w_k + (1 - a) w_t`, `a = a0 s(staleness)`."""

    mixing: float = hyper(0.8, "a0: share of a stale model", min=0, max=1)
    staleness: Literal["polynomial", "hinge", "constant"] = hyper("polynomial", "s, as published")
    exponent: float = hyper(0.5, "e: s = (staleness + 1)^-e", min=0, needs="staleness=polynomial")
    hinge_from: float = hyper(
        4.0, "b: s = 1 up to b, then 1 / (a (staleness - b) + 1)", min=0, needs="staleness=hinge"
    )
    hinge_slope: float = hyper(10.0, "a of the hinge", min=0, needs="staleness=hinge")
    mix_at: Literal["server", "client"] = hyper(
        "server", "who mixes; a client is then tested with the mixture, as in PLGA's program"
    )

    name = "fedasync"
    paper = "Xie et al., Asynchronous Federated Optimization"
    year = 2019

    @property
    def rejoins(self) -> bool:
        return self.mix_at == "client"

    def download_late(self, server: Server, who: Ids, since: Ids) -> Down:
        down = self.download(server, who)
        like = tree.any_leaf(server["model"])
        late = tree.beside([server.round - s for s in since], like).to(like.dtype)
        return Down(down.shared, each={"late": late})

    def rejoin(self, down: Record, mine: Record, up: Record, local: Local) -> tuple[Record, Record]:
        return {"model": self._mixed(down["model"], up["model"], down["late"])}, mine

    def arrivals(self, server: Server, ups: Ups) -> Tree:
        if self.mix_at == "client":
            return super().arrivals(server, ups)
        present = tree.expand(server["model"], len(ups))
        return self._mixed(present, ups["model"], ups.staleness)

    def _mixed(self, present: Tree, trained: Tree, late: Tensor) -> Tree:
        share = torch.where(late > 0, self.mixing * self.freshness(late), 1.0)
        return tree.lerp(present, trained, share)

    def freshness(self, late: Tensor) -> Tensor:
        if self.staleness == "polynomial":
            return (late + 1) ** -self.exponent
        if self.staleness == "hinge":
            over = (late - self.hinge_from).clamp_min(0)
            return 1 / (self.hinge_slope * over + 1)
        return torch.ones_like(late)
