"""CFL (Sattler et al., 2020): clustered federated learning by recursive bi-partition.

All clients start in one cluster, and each cluster runs FedAvg. Where a cluster as a whole has come
to rest but its clients have not, their updates Delta_i pull apart, and it is split in two:

    |sum_i n_i / n Delta_i| < eps1   and   max_i |Delta_i| > eps2       stopping criteria
    c1, c2 = argmin over bi-partitions of max_{i in c1, k in c2} cos(Delta_i, Delta_k)

The best bi-partition is found exactly: it cuts the tree of single linkage by similarity at its
weakest link. With gamma_max > 0 it is made only if sqrt((1 - cos_max) / 2) > gamma_max, cos_max
being the similarity across. Until the first split this is FedAvg.

Where paper and code disagree: the code clusters by complete linkage, which does not give the best
bi-partition; it takes the plain mean of the updates in the first criterion, the paper the mean by
samples (here); it averages the halves apart at once, in the paper both go on from the cluster's
model (here); it has no gamma. eps1 0.4, eps2 1.6 and no split before round 20 are the code's; they
are norms of updates, so they depend on model and learning rate. A cluster splits only in a round
all its members take part in: the criteria are about all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from idiolect import tree
from idiolect.errors import UserError
from idiolect.method import Down, Ids, Record, Server, Tree, Ups, hyper
from idiolect.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from idiolect.net import Net


@dataclass(frozen=True)
class CFL(FedAvg):
    """FedAvg within clusters that split where their clients' updates disagree."""

    eps1: float = hyper(0.4, "a cluster is at rest when its mean update is shorter than this")
    eps2: float = hyper(1.6, "and worth splitting when some client's update is longer than this")
    first_split: int = hyper(20, "rounds before any split")
    gamma_max: float = hyper(0.0, "least separation sqrt((1 - cos) / 2) of a split")
    smallest: int = hyper(3, "clusters of fewer clients are not split")

    name: ClassVar[str] = "cfl"
    paper: ClassVar[str] = "Sattler et al., Clustered Federated Learning"
    year: ClassVar[int] = 2020
    personal_part: ClassVar[str] = "the model of the client's cluster"

    def __post_init__(self) -> None:
        if self.eps1 < 0 or self.eps2 < 0 or self.first_split < 0 or self.smallest < 2:
            raise UserError(
                "method.eps1, eps2 and first_split must not be negative, method.smallest at least 2"
            )

    def server_init(self, net: Net, start: Tree) -> Record:
        models = tree.apply(lambda x: x[None], start)  # one per cluster
        nobody = next(iter(start.values())).new_zeros(0, dtype=torch.int64)
        return {"models": models, "cluster": nobody}

    def clusters(self, server: Server, who: Ids) -> list[int]:
        """Which cluster each client is in; everybody starts in number 0."""
        known = server["cluster"].tolist() or [0] * len(server.sizes)
        of = dict(zip(server.sizes, known, strict=True))
        return [of.get(i, 0) for i in who]

    def download(self, server: Server, who: Ids, since: Ids | None = None) -> Down:
        of = self.clusters(server, who)
        if len(set(of)) == 1:
            return Down(shared={"model": tree.client(server["models"], of[0])})
        at = tree.beside(of, server["cluster"])
        return Down(each={"model": tree.apply(lambda x: x[at], server["models"])})

    def aggregate(self, server: Server, ups: Ups) -> Server:
        numbers = self.clusters(server, ups.ids)
        of = tree.beside(numbers, ups.sizes)
        here = tree.beside(sorted(set(numbers)), ups.sizes)
        sent = tree.apply(lambda x: x[of], server["models"])
        share = self.weights(ups) * (of == here[:, None])  # a row per cluster
        new = tree.mix(share / share.sum(1, keepdim=True), ups["model"])
        server["models"] = {n: v.index_copy(0, here, new[n]) for n, v in server["models"].items()}
        if server.round >= self.first_split:
            update = tree.pick(tree.sub(ups["model"], sent), server.net.weights)
            for number in sorted(set(numbers)):
                self._split(server, ups, update, number)
        everyone = self.clusters(server, list(server.sizes))
        server.log(cluster=tree.beside(everyone, ups.sizes))
        return server

    def _split(self, server: Server, ups: Ups, update: Tree, number: int) -> None:
        of = dict(zip(server.sizes, self.clusters(server, list(server.sizes)), strict=True))
        inside = [k for k, i in enumerate(ups.ids) if of[i] == number]
        if not list(of.values()).count(number) == len(inside) >= self.smallest:
            return
        at = tree.beside(inside, ups.sizes)
        members = tree.apply(lambda x: x[at], update)
        share = self.weights(ups)[at]
        mean = tree.apply(lambda x: x[None], tree.mix(share / share.sum(), members))
        rest, longest = tree.dot(mean, mean).sqrt(), tree.dot(members, members).sqrt().max()
        if not (rest < self.eps1 and longest > self.eps2):
            return
        away, across = bipartition(tree.cosines(members))
        if not ((1 - across) / 2).sqrt() > self.gamma_max:
            return
        second = away.tolist()
        leave = {ups.ids[k]: max(of.values()) + 1 for k, m in zip(inside, second, strict=True) if m}
        server["cluster"] = tree.beside(list((of | leave).values()), ups.sizes)
        server["models"] = {n: torch.cat([v, v[[number]]]) for n, v in server["models"].items()}

    def shared(self, server: Server) -> Tree | None:
        """The model of all, until they split."""
        one = tree.client(server["models"], 0)
        return one if len(next(iter(server["models"].values()))) == 1 else None


def bipartition(cosine: Tensor) -> tuple[Tensor, Tensor]:
    """Who parts from the first client in the bi-partition of least similarity across, and that
    similarity. `reach[i, j]` is the weakest link on the strongest path from i to j; those the first
    client reaches only over the weakest link of all are the other side."""
    reach = cosine.clone().fill_diagonal_(torch.inf)
    for k in range(len(reach)):
        reach = torch.maximum(reach, torch.minimum(reach[:, k : k + 1], reach[k : k + 1, :]))
    across = reach[0].min()
    return reach[0] <= across, across
