"""SFL (Chen et al., IJCAI 2022): personalized federated learning with a graph.

The server spreads the clients' models over a graph of clients, `U = A^layers V` with rows of A
summing to one (a GCN without weights of its own), and reads the mean out as the global model `w`.
A client trains from `w`, held near it and near its own node `u_i`:

    F_i(v) + lambda (|v - u_i| + |v - w|)

Defaults are the code's: lambda 0.3 on plain (not squared) distances, three layers, all of the
aggregate taken. Graphs: 'classes' is the paper's for images, clients linked that share a class
(whether it has a class then leaves the client); 'similarity' (default) stands in for the paper's
hidden graph: links weigh the positive part of cos(v_i - w, v_j - w), the strongest are kept.
The published program learns that graph by fitting adjacency to the *distance* matrix, so that far
clients are linked most, and then uses 5 % of it beside the graph of classes; not repeated here.
What a client predicts with is `u_i`. BatchNorm statistics stay on the client.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.local import Local
from idiolect.core.method import Down, Ids, Net, Server, SgdMethod, Table, Ups, cross_entropy, hyper
from idiolect.core.tree import Record, Tree

EPS = 1e-6  # a distance of zero has no slope


def tethered(
    net: Net, params: Tree, x: Tensor, y: Tensor, node: Tree, world: Tree, lam: Tensor
) -> Tensor:
    """`F_i(v) + lambda (|v - u_i| + |v - w|)`."""

    def distance(to: Tree) -> Tensor:
        gap = {n: params[n] - to[n] for n in net.weights}
        return (tree.inner(gap, gap) + EPS**2).sqrt()

    return cross_entropy(net, params, x, y) + lam * (distance(node) + distance(world))


@dataclass(frozen=True)
class SFL(SgdMethod):
    """Models spread over a graph of clients; local work stays near node and global model."""

    lam: float = hyper(0.3, "lambda: pull to the client's node and to the global model", min=0)
    graph: Literal["similarity", "classes", "complete", "identity"] = hyper(
        "similarity", "links by models, by classes, or an ablation", needs="server_alpha!=0"
    )
    neighbours: int = hyper(5, "strongest links kept (code: 30%)", min=0, needs="graph=similarity")
    layers: int = hyper(3, "times models are spread", min=1, needs="graph=similarity|classes")
    server_alpha: float = hyper(
        1.0, "share of spread models, the rest is own", min=0, max=1, needs="graph!=identity"
    )

    name = "sfl"
    paper = "Chen et al., Personalized Federated Learning With a Graph"
    year = 2022
    personal_part = "the whole model (mixed by the server), BatchNorm statistics"
    traffic = "3"

    @property
    def uses_classes(self) -> bool:
        return self.graph == "classes"

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        weights = tree.pick(start, net.weights)
        return {"nodes": Table(weights), "world": weights}

    def client_init(self, start: Tree, local: Local) -> Record:
        return {"stats": tree.pick(start, local.net.stats)}

    def download(self, server: Server, who: Ids) -> Down:
        return Down(shared={"world": server["world"]}, each={"node": server["nodes"][who]})

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        extra = (down["node"], down["world"], local.each(self.lam))
        model = self.train(local, down["world"] | mine["stats"], tethered, extra=extra)
        up: Record = {"model": tree.pick(model, local.net.weights)}
        if self.graph == "classes":
            up["classes"] = local.counts > 0
        return up, {"stats": tree.pick(model, local.net.stats)}

    def aggregate(self, server: Server, ups: Ups) -> None:
        adjacency = self.adjacency(ups, server["world"])
        eye = torch.diag(torch.ones_like(ups.sizes))
        spread = torch.linalg.matrix_power(adjacency.double(), self.layers).to(eye.dtype)
        weight = self.server_alpha * spread + (1 - self.server_alpha) * eye
        nodes = tree.mix(weight, ups["model"])
        server["nodes"][ups.ids] = nodes
        server["world"] = tree.apply(lambda u: u.mean(0), nodes)  # the read-out
        server.log_clients(ups.ids, ups.ids, adjacency=adjacency, aggregation_weight=weight)

    def adjacency(self, ups: Ups, world: Tree) -> Tensor:
        """Rows sum to one; every client is linked to itself."""
        eye = torch.diag(torch.ones_like(ups.sizes))
        if self.graph == "identity":
            return eye
        links = torch.ones_like(eye)
        if self.graph == "classes":
            has = ups["classes"]
            links = (has[:, None] & has).any(-1).to(eye.dtype)
        elif self.graph == "similarity":
            cosine = tree.cosines(tree.sub(ups["model"], world)).clamp_min(0)
            own_first = cosine.masked_fill(eye > 0, torch.inf)
            best = own_first.sort(dim=1, descending=True, stable=True).indices
            cosine = torch.where(eye > 0, eye, cosine)
            links = cosine * torch.zeros_like(eye).scatter(1, best[:, : self.neighbours + 1], 1.0)
        return links / links.sum(1, keepdim=True)

    def personal(self, down: Record, mine: Record) -> Tree:
        return down["node"] | mine["stats"]

    def trained(self, down: Record, up: Record, mine: Record) -> Tree:
        return up["model"] | mine["stats"]
