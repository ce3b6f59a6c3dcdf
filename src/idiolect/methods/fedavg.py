"""FedAvg (McMahan et al., AISTATS 2017): one global model, the mean of the clients' trained models.

    w <- sum_i n_i / n w_i,   w_i after E epochs of mini-batch SGD from w     (Algorithm 1)

n sums over the clients that take part. SPFL's program takes the plain mean: weighting='uniform'.
BatchNorm statistics are averaged with the weights. The defaults are plain SGD with lr 0.01, one
epoch, batches of 32; each paper's comparison has its own.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Down, Ids, Local, Net, Record, Server, SgdMethod, Tree, Ups, hyper


@dataclass(frozen=True)
class FedAvg(SgdMethod):
    """One global model: `w = sum_i n_i / n * w_i` (Algorithm 1)."""

    weighting: Literal["samples", "uniform"] = hyper("samples", "how clients count in the mean")

    name = "fedavg"
    paper = "McMahan et al., Communication-Efficient Learning of Deep Networks"
    year = 2017

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        return {"model": start}

    def download(self, server: Server, who: Ids) -> Down:
        return Down(shared={"model": server["model"]})

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        return {"model": self.train(local, down["model"])}, mine

    def weights(self, ups: Ups) -> Tensor:
        """Each arrival's weight in the mean."""
        if self.weighting == "uniform":
            return torch.full_like(ups.sizes, 1 / len(ups))
        return ups.share

    def aggregate(self, server: Server, ups: Ups) -> None:
        server["model"] = tree.mix(self.weights(ups), ups["model"])

    def personal(self, down: Record, mine: Record) -> Tree:
        return down["model"]

    def shared(self, server: Server) -> Tree | None:
        return server["model"]
