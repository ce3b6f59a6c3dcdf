"""pFedMe (T. Dinh et al., 2020): personal models as proximal points of the global one.

For every mini-batch D a client takes K steps towards theta(w) = argmin f(theta; D) + lambda/2
|theta - w|^2 (Eq. 3, line 8 of Algorithm 1) and then pulls its local global model after it:

    w <- w - lr lambda (w - theta)                            (Eq. 7, line 9)
    w_{t+1} = (1 - beta) w_t + beta mean_i w_i                (line 13)

The personal theta of the last mini-batch is what a client predicts with; it stays with the client.
In a round theta starts from the received model and goes on from one mini-batch to the next, as in
the authors' program (the paper leaves the start open), which averages by samples where the paper
writes a plain mean (`weighting`). Weight decay and momentum belong to the steps on theta.

Defaults: lambda 15, K 5 (the paper), personal lr 0.01, lr 0.01, beta 1 (SPFL's comparison, with
K 2; FedDWA's has lambda 1, K 5, beta 1). beta = 0, a default elsewhere, freezes the global model.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Local, Net, Record, Server, Tree, Ups, cross_entropy, hyper
from idiolect.methods.fedavg import FedAvg


def moreau(net: Net, params: Tree, x: Tensor, y: Tensor, lam: Tensor, step: Tensor) -> Tensor:
    """`f(theta) + lambda/2 |theta - w|^2`, a function of theta (Eq. 3). w moves after every
    mini-batch, so this is no pull to a fixed point."""
    both = tree.nest(params)
    theta, w = both["theta"], both["w"]
    gap = torch.stack([(theta[n] - w[n]).square().sum() for n in w]).sum()
    return cross_entropy(net, theta, x, y) + 0.5 * lam * gap


def follow(params: Tree, lam: Tensor, step: Tensor) -> Tree:
    """w after the K steps on theta (line 9)."""
    both = tree.nest(params)
    w, theta = both["w"], both["theta"]
    return {f"w/{n}": w[n] - step * lam * (w[n] - theta[n]) for n in w}


@dataclass(frozen=True)
class PFedMe(FedAvg):
    """Personal models from Moreau envelopes, a global model that follows them."""

    lam: float = hyper(15.0, "lambda: how close the personal models stay", min=0)
    inner_steps: int = hyper(5, "K: steps on theta for every mini-batch", min=1)
    personal_lr: float = hyper(0.01, "learning rate of those steps", above=0)
    lr: float = hyper(0.01, "learning rate of the local global model w", above=0)
    beta: float = hyper(1.0, "server mixing; 1 is the mean of the arrivals", min=0)

    name = "pfedme"
    paper = "T. Dinh et al., Personalized Federated Learning with Moreau Envelopes"
    year = 2020
    personal_part = "the whole model theta"
    also_sent = ("theta: stats", "personal: stats")  # statistics are shared as in FedAvg

    def client_init(self, start: Tree, local: Local) -> Record:
        return {"theta": start}

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        weights, decay = local.net.weights, self.lr_factor(local.round)
        start = tree.leaves({"theta": down["model"], "w": tree.pick(down["model"], weights)})
        how: dict[str, Any] = {"lr": self.personal_lr * decay, "repeat": self.inner_steps}
        how |= {"train": [f"theta/{n}" for n in weights], "after": follow}
        extra = (local.each(self.lam), local.each(self.lr * decay))
        done = tree.nest(self.train(local, start, moreau, extra=extra, **how))
        return {"model": done["theta"] | done["w"]}, {"theta": done["theta"]}

    def aggregate(self, server: Server, ups: Ups) -> None:
        mean = tree.mix(self.weights(ups), ups["model"])
        server["model"] = tree.lerp(server["model"], mean, self.beta)

    def personal(self, down: Record, mine: Record) -> Tree:
        return mine["theta"]
