"""FedALA (Zhang et al., AAAI 2023): adaptive local aggregation.

Before training, a client mixes the global model into its own, element by element in the p last
layers, and takes the rest as it comes:

    Theta_i = Theta_i + (Theta - Theta_i) * W_i,   W_i in [0, 1]

W_i (Algorithm 1) starts at one, is learned by gradient steps of size eta on s % of the client's
data, clipped to [0, 1] after each, and stays with the client. In the first round in which it has a
model of its own it repeats until the loss settles (its deviation over the last 10 passes is below
0.1), later it makes one pass. All ones is FedAvg.

Where paper and code disagree: the paper's p counts layers, the code's weight tensors (default 2: a
linear head and its bias). The code never stops repeating if the loss does not settle: `ala_epochs`
caps it. It watches the last mini-batch's loss; here it is the mean over the pass. eta, s, p, the
threshold and the window are those quoted with FedAS.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Local, Net, Record, Tree, cross_entropy, hyper
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.shared import holdout


def mixed(own: Tree, theirs: Tree, weight: Tree) -> Tree:
    """`own + (theirs - own) * W`, so written that a weight of one gives `theirs` exactly."""
    return {n: own[n] * (1 - weight[n]) + theirs[n] * weight[n] for n in weight}


def mixed_loss(net: Net, params: Tree, x: Tensor, y: Tensor, own: Tree, theirs: Tree) -> Tensor:
    """The loss of the mixture; `params` holds W under the names of the leaves it mixes."""
    weight = {n: params[n] for n in own}
    return cross_entropy(net, params | mixed(own, theirs, weight), x, y)


def clipped(params: Tree, own: Tree, theirs: Tree) -> Tree:
    return {n: params[n].clamp(0, 1) for n in own}


@dataclass(frozen=True)
class FedALA(FedAvg):
    """FedAvg whose clients learn, element by element, how much of the global model to take."""

    eta: float = hyper(1.0, "step size of W (0: W stays one)", min=0)
    data_share: float = hyper(0.8, "s: share of data W learns on", above=0, max=1, needs="eta!=0")
    layer_index: int = hyper(2, "p: the last p weight tensors are mixed (0: all)", min=0)
    threshold: float = hyper(
        0.1, "deviation below which the loss has settled", min=0, needs="eta!=0, ala_epochs!=1"
    )
    window: int = hyper(10, "of the losses of so many passes", min=1, needs="eta!=0, ala_epochs!=1")
    ala_epochs: int = hyper(50, "most passes in a client's first mixing", min=1, needs="eta!=0")

    name = "fedala"
    paper = "Zhang et al., FedALA: Adaptive Local Aggregation for Personalized FL"
    year = 2023
    personal_part = "the mixture of own and global model, and its weights W"
    trainings = 2
    also_sent = ("model: all", "personal: all")  # the last trained model, mixed next time

    @property
    def revision(self) -> int:
        return 2 if self.data_share < 1 else 1  # other samples had weight zero

    def client_init(self, start: Tree, local: Local) -> Record:
        weight = tree.pick(start, local.net.weights[-self.layer_index :])
        visits = torch.zeros_like(local.sizes, dtype=torch.int64)
        return {"model": start, "weight": tree.apply(torch.ones_like, weight), "visits": visits}

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        weight = mine["weight"]
        if bool((mine["visits"] > 0).any()):
            weight = self._learn(local, down["model"], mine)
        model = self.train(local, self.initialised(down["model"], mine["model"], weight))
        return {"model": model}, {"model": model, "weight": weight, "visits": mine["visits"] + 1}

    @staticmethod
    def initialised(theirs: Tree, own: Tree, weight: Tree) -> Tree:
        """The client's model at the start of the round."""
        return theirs | mixed(own, theirs, weight)

    def _learn(self, local: Local, theirs: Tree, mine: Record) -> Tree:
        """W on a fresh share of the data; clients that never trained have nothing to mix yet."""
        weight = mine["weight"]
        own = tree.pick(mine["model"], weight)
        part, _ = holdout.split(local, self.data_share, f"ala/{local.round}")
        how: dict[str, Any] = {"lr": self.eta, "batch_size": self.batch_size, "order": self.order}
        how |= {"extra": (own, tree.pick(theirs, own)), "after": clipped, "train": own}
        first, active = mine["visits"] == 1, mine["visits"] > 0
        losses: list[Tensor] = []
        while len(losses) < self.ala_epochs and bool(active.any()):
            how |= {"purpose": "ala", "only": active, "report": False}
            done = part.sgd(mixed_loss, theirs | weight, **how)
            weight = tree.pick(done.params, own)
            losses.append(done.loss)
            active = active & first & ~self._settled(losses)
        return weight

    def _settled(self, losses: list[Tensor]) -> Tensor:
        last = torch.stack(losses[-self.window :])
        return (last.std(0, correction=0) < self.threshold) & (len(losses) > self.window)

    def personal(self, down: Record, mine: Record) -> Tree:
        return self.initialised(down["model"], mine["model"], mine["weight"])

    def trained(self, down: Record, up: Record, mine: Record) -> Tree:
        return mine["model"]
