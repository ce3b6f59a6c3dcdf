"""PFLEGO (Nikoloutsopoulos et al., 2022): personalized FL with exact stochastic gradient descent.

A client computes its features once and takes tau - 1 gradient steps of size beta on its head W_i.
Then it takes one joint gradient at (W_i, theta): the head moves by rho I/r times its part, and the
part of theta goes to the server. A round costs two passes of the network whatever tau is.

    G = I/r sum_i alpha_i grad_theta l_i(W_i, theta),   alpha_i = n_i / n         (Eq. 7)

The server feeds G to Adam with step rho. Defaults: the paper's tau, a beta and rho of its tables.

The head predicts the client's own classes only. Rows of other classes have weight 0 and a bias so
low that their probability is exactly 0, so the exported model is a plain module.

Where paper and code disagree: Eq. 6 scales the head step by alpha_i; Eq. 4, Algorithm 1 and the
code do not: `head_step` 'literal' (default) or 'exact'. The paper normalises alpha over all
clients, the code over the sampled ones and keeps I/r: `alpha` 'all' (default) or 'sampled'. If each
client comes with some probability, the paper's r is the number expected, which makes G unbiased:
`ratio` 'expected' (default; the number drawn where the schedule says none) or 'drawn'.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.local import Local
from idiolect.core.method import Down, Ids, Method, Net, Server, Ups, cross_entropy, features, hyper
from idiolect.core.tree import Record, Tree
from idiolect.methods.shared.adam import adam
from idiolect.methods.shared.own_classes import own_class_head


def head_loss(net: Net, params: Tree, h: Tensor, y: Tensor) -> Tensor:
    return net.loss_of(net.classify(params, h), y)


@dataclass(frozen=True)
class PFLEGO(Method):
    """Shared features, personal heads, an exact gradient for the server."""

    tau: int = hyper(50, "gradient steps on the head per round, the last one joint", min=1)
    beta: float = hyper(0.007, "step size of the tau - 1 head steps", min=0, needs="tau!=1")
    rho: float = hyper(0.001, "step size of the server and of the last head step", min=0)
    server: Literal["adam", "sgd"] = hyper("adam", "the server's optimizer")
    head_step: Literal["literal", "exact"] = hyper(
        "literal", "last head step as in Algorithm 1, or times alpha_i as Eq. 6 needs"
    )
    alpha: Literal["all", "sampled"] = hyper("all", "alpha_i = n_i over the samples of whom")
    head_init: Literal["uniform", "start"] = hyper(
        "uniform", "heads start uniform in [0, 1), or from the model's own head"
    )
    ratio: Literal["expected", "drawn"] = hyper(
        "expected", "r of I/r: clients expected in a round, or those of this round"
    )

    name = "pflego"
    needs_classes = True
    fixed_loss = True
    paper = "Nikoloutsopoulos et al., Personalized FL with Exact SGD"
    year = 2022
    personal_part = "the head"
    traffic = "2 base"
    rounds_default = 200

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        theta = tree.drop(tree.pick(start, net.weights), net.head)
        zero = tree.zeros_like(theta)
        moments = {"m": zero, "v": tree.clone(zero)} if self.server == "adam" else {}
        count = tree.any_leaf(start).new_zeros((), dtype=torch.float32)
        return {"theta": theta, "updates": count, **moments}

    def client_init(self, start: Tree, local: Local) -> Record:
        head = own_class_head(start, local, self.head_init == "uniform")
        return {"head": head, "stats": tree.pick(start, local.net.stats)}

    def download(self, server: Server, who: Ids) -> Down:
        scale = server["updates"].new_tensor(self._ratio(server, who), dtype=torch.float64)
        shared = {"theta": server["theta"], "scale": scale}
        exact = self.head_step == "exact"
        return Down(shared, each={"alpha": self._alpha(server, who)} if exact else {})

    def _ratio(self, server: Server, who: Ids) -> float:
        """I / r."""
        r = server.expected if self.ratio == "expected" else None
        return len(server.sizes) / (r or len(who))

    def _alpha(self, server: Server, who: Ids) -> Tensor:
        sizes = [server.sizes.get(i, 0) for i in who]  # unseen: 0
        total = sum(sizes) if self.alpha == "sampled" else sum(server.sizes.values())
        return server["updates"].new_tensor(sizes, dtype=torch.float64) / max(1, total)

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        head, rest = mine["head"], down["theta"] | mine["stats"]
        if self.tau > 1:
            phi = local.forward(features, rest)
            how: dict[str, Any] = {"batch_size": "full", "epochs": self.tau - 1, "lr": self.beta}
            head = local.sgd(head_loss, head, x=phi, train=local.net.head, **how).params
        gradient, _, after = local.grad(cross_entropy, rest | head, training=True)
        step = local.each(self.rho) * down["scale"]
        if self.head_step == "exact":
            step = step * down["alpha"]
        own = tree.pick(gradient, local.net.head)
        head = tree.sub(head, tree.scale(own, step))
        up = {"gradient": tree.drop(gradient, local.net.head)}
        return up, {"head": head, "stats": tree.pick(after, local.net.stats)}

    def aggregate(self, server: Server, ups: Ups) -> None:
        scale = self._ratio(server, ups.ids)
        g = tree.scale(tree.mix(self._alpha(server, ups.ids), ups["gradient"]), scale)  # Eq. 7
        server["updates"] = server["updates"] + 1
        if self.server == "adam":
            t = float(server["updates"])
            g, server["m"], server["v"] = adam(g, server["m"], server["v"], t)
        server["theta"] = tree.add(server["theta"], tree.scale(g, -self.rho))

    def shared(self, server: Server) -> Tree | None:
        return server["theta"]

    def personal(self, down: Record, mine: Record) -> Tree:
        return down["theta"] | mine["head"] | mine["stats"]
