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
all its members take part in: the criteria are about all of them. So it is FedAvg where a part
of the clients takes part in each round, whatever eps1 and eps2.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Down, Ids, Net, Record, Server, Tree, Ups, hyper
from idiolect.methods.fedavg import FedAvg


@dataclass(frozen=True)
class CFL(FedAvg):
    """FedAvg within clusters that split where their clients' updates disagree."""

    eps1: float = hyper(0.4, "a cluster is at rest if its mean update is shorter", min=0)
    eps2: float = hyper(1.6, "and is split if a client's update is longer", min=0, needs="eps1!=0")
    first_split: int = hyper(20, "rounds before any split", min=0, needs="eps1!=0")
    gamma_max: float = hyper(0.0, "least separation of a split", min=0, max=1, needs="eps1!=0")
    smallest: int = hyper(3, "clusters of fewer clients are not split", min=2, needs="eps1!=0")

    name = "cfl"
    paper = "Sattler et al., Clustered Federated Learning"
    year = 2020
    personal_part = "the model of the client's cluster"

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        models = tree.apply(lambda x: x[None], start)  # one per cluster
        return {"models": models, "cluster": tree.beside([0] * len(clients), tree.any_leaf(start))}

    def clusters(self, server: Server) -> dict[int, int]:
        """Which cluster each client is in; everybody starts in number 0."""
        return dict(zip(server.clients, server["cluster"].tolist(), strict=True))

    def download(self, server: Server, who: Ids) -> Down:
        clusters = self.clusters(server)
        of = [clusters.get(i, 0) for i in who]
        if len(set(of)) == 1:
            return Down(shared={"model": tree.client(server["models"], of[0])})
        at = tree.beside(of, server["cluster"])
        return Down(each={"model": tree.apply(lambda x: x[at], server["models"])})

    def aggregate(self, server: Server, ups: Ups) -> None:
        clusters, models = self.clusters(server), server["models"]
        of = tree.beside([clusters[i] for i in ups.ids], ups.sizes)
        numbers = sorted({clusters[i] for i in ups.ids})
        here = tree.beside(numbers, ups.sizes)
        update = tree.apply(lambda new, old: new - old[of], ups["model"], models)
        share = self.weights(ups) * (of == here[:, None])  # a row per cluster
        mean = tree.mix(share / share.sum(1, keepdim=True), ups["model"])
        models = {n: x.index_copy(0, here, mean[n]) for n, x in models.items()}
        for number in numbers if server.round >= self.first_split else []:
            members = [i for i in clusters if clusters[i] == number]
            leave = self._leaving(members, ups, tree.pick(update, server.net.weights))
            if leave:
                clusters |= dict.fromkeys(leave, max(clusters.values()) + 1)
                models = {n: torch.cat([x, x[[number]]]) for n, x in models.items()}
        server["models"] = models
        server["cluster"] = tree.beside(list(clusters.values()), ups.sizes)
        server.log_clients(server.clients, cluster=server["cluster"])

    def _leaving(self, members: list[int], ups: Ups, update: Tree) -> list[int]:
        """The second half of the cluster, if it is to be split."""
        if not set(members) <= set(ups.ids) or len(members) < self.smallest:
            return []
        at = tree.beside([ups.ids.index(i) for i in members], ups.sizes)
        update, share = tree.apply(lambda x: x[at], update), self.weights(ups)[at]
        mean = tree.apply(lambda x: x[None], tree.mix(share / share.sum(), update))
        rest, longest = tree.dot(mean, mean).sqrt(), tree.dot(update, update).sqrt().max()
        if not (rest < self.eps1 and longest > self.eps2):
            return []
        second, across = bipartition(tree.cosines(update))
        if not ((1 - across) / 2).sqrt() > self.gamma_max:
            return []
        return [i for i, leaves in zip(members, second.tolist(), strict=True) if leaves]

    def shared(self, server: Server) -> Tree | None:
        """The model of all, until they split."""
        one = tree.client(server["models"], 0)
        return one if len(tree.any_leaf(server["models"])) == 1 else None


def bipartition(cosine: Tensor) -> tuple[Tensor, Tensor]:
    """Who parts from the first client in the bi-partition of least similarity across, and that
    similarity. `reach[i, j]` is the weakest link on the strongest path from i to j; those the first
    client reaches only over the weakest link of all are the other side."""
    reach = cosine.clone().fill_diagonal_(torch.inf)
    for k in range(len(reach)):
        reach = torch.maximum(reach, torch.minimum(reach[:, k : k + 1], reach[k : k + 1, :]))
    across = reach[0].min()
    return reach[0] <= across, across
