"""Fed-RoD (Chen and Chao, ICLR 2022): bridging generic and personalized federated learning.

Two predictors on one extractor. The generic head and the extractor are trained with balanced
softmax (logits plus the log of the client's class counts) and averaged as in FedAvg. The personal
head is trained with plain cross-entropy on the sum of both heads' logits, and this loss moves
nothing but the personal head (Algorithm 1). Predictions are that sum; both heads being linear, it
is one head with added weights, so a personal model is a plain module.

`head` 'linear' is a personal head each client keeps (it starts at zero: the generic predictor);
'hyper' makes it with a shared hypernetwork, two layers that take the client's class distribution
(which stays on the client). The hypernetwork travels with the model, so unseen clients have a head
too.

A class the client lacks has count 0 and log 0; it counts `FLOOR` samples here: as good as none, and
finite. There is no public code.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Down, Ids, Local, Loss, Net, Record, Server, Tree, Ups, hyper
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.shared.hypernetwork import generate, hypernetwork, unprefixed

FLOOR = 1e-8
OWN = "personal."  # prefix of leaves beside the module's own


def two_losses(net: Net, params: Tree, own: Tree, x: Tensor, y: Tensor, prior: Tensor) -> Tensor:
    """Balanced softmax of the generic head; cross-entropy of both heads for the personal one."""
    h = net.features(tree.pick(params, net.names), x)
    generic = net.classify(params, h)
    personal = generic.detach() + net.classify(own, h.detach())
    balanced = F.cross_entropy(generic + prior, y, reduction="none")
    return balanced + F.cross_entropy(personal, y, reduction="none")


def linear_loss(net: Net, params: Tree, x: Tensor, y: Tensor, prior: Tensor) -> Tensor:
    return two_losses(net, params, unprefixed(params, OWN), x, y, prior)


def hyper_loss(net: Net, params: Tree, x: Tensor, y: Tensor, prior: Tensor, a: Tensor) -> Tensor:
    return two_losses(net, params, generate(unprefixed(params, OWN), a), x, y, prior)


@dataclass(frozen=True)
class FedRoD(FedAvg):
    """A balanced generic model, and a personal head added to its head."""

    epochs: int = hyper(5)
    head: Literal["linear", "hyper"] = hyper("linear", "personal head: kept, or generated")
    hidden: int = hyper(32, "width of the hypernetwork", min=1, needs="head=hyper")
    loss: Literal["balanced_softmax", "cross_entropy"] = hyper(
        "balanced_softmax", "loss of the generic head"
    )

    name = "fedrod"
    needs_classes = True
    fixed_loss = True
    paper = "Chen and Chao, On Bridging Generic and Personalized FL"
    year = 2022
    personal_part = "a second head"
    traffic = "2"
    rounds_default = 100

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        net.linear_head()
        if self.head == "linear":
            return {"model": start}
        nu = hypernetwork(tree.pick(start, net.head), self.hidden)
        return {"model": start, "hyper": {OWN + n: x for n, x in nu.items()}}

    def client_init(self, start: Tree, local: Local) -> Record:
        if self.head == "hyper":
            return {"distribution": local.counts / local.sizes[:, None]}
        return {"head": {OWN + n: torch.zeros_like(start[n]) for n in local.net.head}}

    def download(self, server: Server, who: Ids) -> Down:
        return Down(shared={part: server[part] for part in ("model", "hyper") if part in server})

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        prior = local.counts.to(local.dtype).clamp_min(FLOOR).log()
        if self.loss == "cross_entropy":
            prior = torch.zeros_like(prior)
        generated = self.head == "hyper"
        own: Tree = down["hyper"] if generated else mine["head"]
        loss: Loss = hyper_loss if generated else linear_loss
        extra = (prior, mine["distribution"]) if generated else (prior,)
        start = down["model"] | own
        both = self.train(local, start, loss, extra=extra, train=start)
        up, own = {"model": tree.pick(both, local.net.names)}, tree.pick(both, own)
        return (up | {"hyper": own}, mine) if generated else (up, {"head": own})

    def aggregate(self, server: Server, ups: Ups) -> None:
        if "hyper" in ups:
            server["hyper"] = tree.mix(self.weights(ups), ups["hyper"])
        super().aggregate(server, ups)

    def personal(self, down: Record, mine: Record) -> Tree:
        model = down["model"]
        if self.head == "hyper":
            own = generate(unprefixed(down["hyper"], OWN), mine["distribution"])
        else:
            own = unprefixed(mine["head"], OWN)
        return model | {n: model[n] + x for n, x in own.items()}
