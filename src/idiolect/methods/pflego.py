"""PFLEGO (Nikoloutsopoulos et al., 2022): personalized FL with exact stochastic gradient descent.

A client computes its features once, takes tau - 1 gradient steps on its head alone, then one joint
gradient at (head, theta): the head moves locally, the gradient of theta goes to the server. Two
network passes per round whatever tau is.

The head predicts the client's own classes only: rows of other classes have weight 0 and a bias so
low that their probability is exactly 0, so the exported model is a plain module.

Where paper and code disagree: Eq. 6 scales the head step by alpha_i; Eq. 4, Algorithm 1 and the
code do not: `head_step` 'literal' (default) or 'exact'. The paper normalises alpha over all
clients, the code over the sampled ones and keeps I/r: `alpha` 'all' (default) or 'sampled'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from idiolect import tree
from idiolect.errors import UserError
from idiolect.method import Down, Method, Record, Server, Tree, Ups, cross_entropy, hyper

if TYPE_CHECKING:
    from idiolect.local import Local
    from idiolect.net import Net

NEVER = -1e9  # bias of classes a client does not have


def features(net: Net, params: Tree, x: Tensor, y: Tensor) -> Tensor:
    return net.features(params, x)


def head_loss(net: Net, params: Tree, h: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net.classify(params, h), y, reduction="none")


@dataclass(frozen=True)
class PFLEGO(Method):
    """Shared features, personal heads, an exact gradient for the server."""

    tau: int = hyper(50, "gradient steps on the head per round, the last one joint")
    beta: float = hyper(0.007, "step size of the tau - 1 head steps")
    rho: float = hyper(0.001, "step size of the server and of the last head step")
    server: Literal["adam", "sgd"] = hyper("adam", "the server's optimizer")
    head_step: Literal["literal", "exact"] = hyper(
        "literal", "last head step as in Algorithm 1, or times alpha_i as Eq. 6 needs"
    )
    alpha: Literal["all", "sampled"] = hyper("all", "alpha_i = n_i over the samples of whom")
    head_init: Literal["uniform", "start"] = hyper(
        "uniform", "heads start uniform in [0, 1), or from the model's own head"
    )

    name: ClassVar[str] = "pflego"
    paper: ClassVar[str] = "Nikoloutsopoulos et al., Personalized FL with Exact SGD"
    year: ClassVar[int] = 2022
    personal_part: ClassVar[str] = "the head"
    traffic: ClassVar[str] = "2 base"
    rounds_default: ClassVar[int] = 200

    def server_init(self, net: Net, start: Tree) -> Record:
        theta = tree.drop(tree.pick(start, net.weights), net.head)
        zero = tree.zeros_like(theta)
        adam = {"m": zero, "v": tree.clone(zero)} if self.server == "adam" else {}
        return {"theta": theta, "updates": torch.zeros(()), **adam}

    def client_init(self, start: Tree, local: Local) -> Record:
        absent = local.counts == 0  # [K, classes]
        if local.net.linear_head()[1] is None:
            raise UserError(
                "pflego needs a head with a bias; build the model's head with bias=True"
            )
        head = {}
        for n in local.net.head:
            own = start[n]
            if self.head_init == "uniform":
                own = local.uniform(own.shape[1:], f"head/{n}")
            fill = NEVER if n.endswith("bias") else 0.0
            shape = (*absent.shape, *([1] * (own.ndim - 2)))
            head[n] = torch.where(absent.view(shape), torch.full_like(own, fill), own)
        return {"head": head, "stats": tree.pick(start, local.net.stats)}

    def download(
        self, server: Server, who: Sequence[int], since: Sequence[int] | None = None
    ) -> Down:
        scale = torch.tensor(len(server.sizes) / len(who), dtype=torch.float64)  # I / r
        shared = {"theta": server["theta"], "scale": scale}
        exact = self.head_step == "exact"
        return Down(shared, each={"alpha": self._alpha(server, who)} if exact else {})

    def _alpha(self, server: Server, who: Sequence[int]) -> Tensor:
        sizes = server.sizes
        own = torch.tensor([sizes.get(i, 0) for i in who], dtype=torch.float64)  # unseen: 0
        total = own.sum().clamp_min(1) if self.alpha == "sampled" else sum(sizes.values())
        return own / total

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        head, rest = mine["head"], down["theta"] | mine["stats"]
        if self.tau > 1:
            phi = local.forward(features, rest)
            how: dict[str, Any] = {"batch_size": "full", "epochs": self.tau - 1, "lr": self.beta}
            head = local.sgd(head_loss, head, x=phi, train=local.net.head, **how)
        gradient, _, after = local.grad(cross_entropy, rest | head, training=True)
        step = local.each(self.rho) * down["scale"]
        if self.head_step == "exact":
            step = step * down["alpha"]
        own = tree.pick(gradient, local.net.head)
        head = tree.sub(head, tree.scale(own, step))
        up = {"gradient": tree.drop(gradient, local.net.head)}
        return up, {"head": head, "stats": tree.pick(after, local.net.stats)}

    def aggregate(self, server: Server, ups: Ups) -> Server:
        scale = len(server.sizes) / len(ups)
        g = tree.scale(tree.mix(self._alpha(server, ups.ids), ups["gradient"]), scale)  # Eq. 7
        server["updates"] = server["updates"] + 1
        if self.server == "adam":
            m = server["m"] = tree.lerp(g, server["m"], 0.9)
            v = server["v"] = tree.lerp(tree.mul(g, g), server["v"], 0.999)
            t = float(server["updates"])
            g = tree.apply(
                lambda m, v: m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + 1e-8), m, v
            )
        server["theta"] = tree.add(server["theta"], tree.scale(g, -self.rho))
        return server

    def shared(self, server: Server) -> Tree | None:
        return server["theta"]

    def personal(self, down: Record, mine: Record) -> Tree:
        return down["theta"] | mine["head"] | mine["stats"]
