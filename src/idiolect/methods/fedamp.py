"""FedAMP (Huang et al., AAAI 2021): federated attentive message passing.

The server keeps a personalized cloud model `u_i` per client, a mixture that attracts similar
clients to each other; the client trains its own model `w_i` near it:

    A(x) = 1 - exp(-x / sigma)                              the attention-inducing function
    xi_ij = alpha A'(|w_i - w_j|^2), j != i;   xi_ii = 1 - sum_j xi_ij
    u_i = sum_j xi_ij w_j                                   the server's gradient step on A
    w_i = argmin F_i(w) + lambda / (2 alpha) |w - u_i|^2    the client's proximal step

The paper asks for a step alpha small enough that no xi_ii is negative. A fixed alpha of 1 is not,
once more than a few clients are alike: row i then takes the largest step that is, which leaves
xi_ii = 0. sigma, alpha and lambda are FedDWA's for this baseline.

Where paper and public code disagree: the argmin leaves the starting point open; public code trains
on from the client's own model (`start='own'`, default). A widely used library detaches the penalty,
which makes it Local for any lambda; here it has its gradient. `weights='heuristic'` is the paper's
HeurFedAMP: `xi_ii` is fixed, the others share the rest by a softmax of sigma cos(w_i, w_j).
BatchNorm statistics stay on the client.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Down, Ids, Local, Net, Record, Server, Table, Tree, Ups, hyper
from idiolect.methods.local import LocalOnly


@dataclass(frozen=True)
class FedAMP(LocalOnly):
    """Every client is drawn towards its own mixture of similar clients' models."""

    sigma: float = hyper(1.0, "width of attention", above=0, needs="weights=attention|heuristic")
    alpha: float = hyper(1.0, "message passing step; shorter where xi_ii would be < 0", above=0)
    lam: float = hyper(0.1, "lambda: the client's penalty is lambda / (2 alpha) |w - u|^2", min=0)
    start: Literal["own", "cloud"] = hyper("own", "train on from the own or from the cloud model")
    weights: Literal["attention", "heuristic", "uniform", "identity"] = hyper(
        "attention", "xi of FedAMP, of HeurFedAMP, or an ablation"
    )
    self_weight: float = hyper(0.5, "xi_ii of heuristic", min=0, max=1, needs="weights=heuristic")

    name = "fedamp"
    paper = "Huang et al., Personalized Cross-Silo FL on Non-IID Data"
    year = 2021
    traffic = "2"
    also_sent = ("model: weights", "personal: weights")  # mixed by the server

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        return {"clouds": Table(tree.pick(start, net.weights))}

    def download(self, server: Server, who: Ids) -> Down:
        return Down(each={"cloud": server["clouds"][who]})

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        cloud = tree.pick(down["cloud"], local.net.weights)
        start = mine["model"] if self.start == "own" else mine["model"] | cloud
        model = self.train(local, start, pull=(cloud, local.each(self.lam / self.alpha)))
        return {"model": tree.pick(model, local.net.weights)}, {"model": model}

    def aggregate(self, server: Server, ups: Ups) -> None:
        xi = self.attention(ups["model"])
        server["clouds"][ups.ids] = tree.mix(xi, ups["model"])
        server.log_clients(ups.ids, ups.ids, aggregation_weight=xi)

    def attention(self, models: Tree) -> Tensor:
        """xi: row i is how much client i's cloud takes of each model."""
        k = len(tree.any_leaf(models))
        eye = torch.diag(tree.any_leaf(models).new_ones(k))
        if self.weights == "identity" or k == 1:
            return eye
        if self.weights == "uniform":
            return torch.full_like(eye, 1 / k)
        if self.weights == "heuristic":
            cosine = tree.cosines(models).masked_fill(eye > 0, -torch.inf)
            others = torch.softmax(self.sigma * cosine, 1)
            return self.self_weight * eye + (1 - self.self_weight) * others
        distance = tree.square_distances(models, models)
        slope = torch.exp(-distance / self.sigma) / self.sigma * (1 - eye)  # A'
        others = self.alpha * slope
        others = others / others.sum(1, keepdim=True).clamp_min(1)
        return others + torch.diag((1 - others.sum(1)).clamp_min(0))
