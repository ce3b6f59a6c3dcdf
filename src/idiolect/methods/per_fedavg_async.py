"""Per-FedAvg as PLGA's Table 2 has it: asynchronous, and not a meta-learner.

Clients take two consecutive SGD steps of one size on every mini-batch (0.001 and 0.001) and predict
without further adaptation. The server keeps the latest model of every client, the common start for
those it never heard of, and averages all N of them by samples whenever something arrives.

A straggler with period p is there again after p + 1 rounds: run it with stragglers.cycle 'paper'
(the other methods of that table have p + 2, cycle 'code').
"""

from dataclasses import dataclass
from typing import Any

from idiolect.core.method import Ids, Local, Net, Record, Server, Table, Tree, Ups
from idiolect.methods.fedavg_async import FedAvgAsync


@dataclass(frozen=True)
class PerFedAvgAsync(FedAvgAsync):
    """Two steps per mini-batch; the server averages the latest model of every client."""

    name = "per_fedavg_async"
    paper = "baseline of Personalized Heterogeneous FL with Gradient Similarity"
    year = 2022

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        return {"model": start, "latest": Table(start)}

    def train(self, local: Local, params: Tree, *args: Any, **changes: Any) -> Tree:
        return super().train(local, params, *args, repeat=2, **changes)

    def aggregate(self, server: Server, ups: Ups) -> None:
        if not len(ups):
            return
        server["latest"][ups.ids] = ups["model"]
        sizes = ups.sizes.new_tensor(list(server.sizes.values()))
        share = sizes / sizes.sum() if self.weighting == "samples" else sizes * 0 + 1 / len(sizes)
        server["model"] = server["latest"].mix(share, list(server.sizes))
