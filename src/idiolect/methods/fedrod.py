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
finite. There is no public code; the hypernetwork's width and its start are choices made here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from idiolect import tree
from idiolect.errors import UserError
from idiolect.method import Down, Loss, Record, Server, Tree, Ups, hyper
from idiolect.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from idiolect.local import Local
    from idiolect.net import Net

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
    return two_losses(net, params, unprefixed(params), x, y, prior)


def hyper_loss(net: Net, params: Tree, x: Tensor, y: Tensor, prior: Tensor, a: Tensor) -> Tensor:
    return two_losses(net, params, generate(params, a), x, y, prior)


def unprefixed(params: Tree, prefix: str = OWN) -> Tree:
    return {n.removeprefix(prefix): x for n, x in params.items() if n.startswith(prefix)}


def generate(nu: Tree, a: Tensor) -> Tree:
    """The hypernetwork's head for the class distribution `a` of one client, or of K."""
    hidden = F.relu((nu[OWN + "in.weight"] @ a[..., None])[..., 0] + nu[OWN + "in.bias"])
    weights, biases = unprefixed(nu, OWN + "out.weight."), unprefixed(nu, OWN + "out.bias.")
    head = {}
    for name, bias in biases.items():
        column = hidden.reshape(*a.shape[:-1], *[1] * (bias.ndim - a.ndim), -1, 1)
        head[name] = (weights[name] @ column)[..., 0] + bias
    return head


@dataclass(frozen=True)
class FedRoD(FedAvg):
    """A balanced generic model, and a personal head added to its head."""

    epochs: int = hyper(5, "passes over the client's data per round")
    head: Literal["linear", "hyper"] = hyper("linear", "personal head: kept, or generated")
    hidden: int = hyper(32, "width of the hypernetwork")
    loss: Literal["balanced_softmax", "cross_entropy"] = hyper(
        "balanced_softmax", "loss of the generic head"
    )

    name: ClassVar[str] = "fedrod"
    paper: ClassVar[str] = "Chen and Chao, On Bridging Generic and Personalized FL"
    year: ClassVar[int] = 2022
    personal_part: ClassVar[str] = "a second head"
    traffic: ClassVar[str] = "2"
    rounds_default: ClassVar[int] = 100

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise UserError("method.hidden must be positive")

    def server_init(self, net: Net, start: Tree) -> Record:
        net.linear_head()
        head = tree.pick(start, net.head)
        if self.head == "linear":
            return {"model": start}
        like = head[net.head[0]]
        classes = len(like)
        seeded = torch.Generator().manual_seed(0)
        w = (2 * torch.rand(self.hidden, classes, generator=seeded) - 1) * sqrt(6 / classes)
        nu = {OWN + "in.weight": w.to(like), OWN + "in.bias": like.new_zeros(self.hidden)}
        for name, x in head.items():  # generates zeros at the start
            nu[f"{OWN}out.weight.{name}"] = x.new_zeros(*x.shape, self.hidden)
            nu[f"{OWN}out.bias.{name}"] = torch.zeros_like(x)
        return {"model": start, "hyper": nu}

    def client_init(self, start: Tree, local: Local) -> Record:
        if self.head == "hyper":
            return {"distribution": local.counts / local.sizes[:, None]}
        return {"head": {OWN + n: torch.zeros_like(start[n]) for n in local.net.head}}

    def download(
        self, server: Server, who: Sequence[int], since: Sequence[int] | None = None
    ) -> Down:
        return Down(shared={part: server[part] for part in ("model", "hyper") if part in server})

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        prior = local.counts.to(local.dtype).clamp_min(FLOOR).log()
        if self.loss == "cross_entropy":
            prior = torch.zeros_like(prior)
        if self.head == "hyper":
            own, extra = down["hyper"], [prior, mine["distribution"]]
        else:
            own, extra = mine["head"], [prior]
        loss: Loss = hyper_loss if self.head == "hyper" else linear_loss
        moving = [*local.net.weights, *own]
        both = self.train(local, down["model"] | own, loss, extra=extra, train=moving)
        up, own = {"model": tree.pick(both, local.net.names)}, tree.pick(both, own)
        return (up | {"hyper": own}, mine) if self.head == "hyper" else (up, {"head": own})

    def aggregate(self, server: Server, ups: Ups) -> Server:
        if "hyper" in ups:
            server["hyper"] = tree.mix(self.weights(ups), ups["hyper"])
        return super().aggregate(server, ups)

    def personal(self, down: Record, mine: Record) -> Tree:
        model = down["model"]
        if self.head == "hyper":
            own = generate(down["hyper"], mine["distribution"])
        else:
            own = unprefixed(mine["head"])
        return model | {n: model[n] + x for n, x in own.items()}

    def trained(self, down: Record, up: Record, mine: Record) -> Tree:
        return self.personal(up, mine)
