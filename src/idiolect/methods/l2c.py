"""L2C (Li et al., CVPR 2022): learning to collaborate.

Every client has logits alpha_i over all N clients and moves along everybody's last updates,

    w_ij = exp(alpha_ij) / sum_k exp(alpha_ik),   theta_i <- theta_i + sum_j w_ij Delta_j

where Delta_j is what client j's local training changed. Before that it learns alpha_i by gradient
steps on the loss of the mixture on its own validation samples. The mixture is linear in w, so its
gradient is `<grad L(theta_i), Delta_j>` for every j, then the softmax's: one product with the stack
of updates, whatever the number of steps.

The paper's round is training, then the mixture. Both need the client's data, so here a client does
them in one visit, the other way round: it mixes what it is sent and trains from there. Between two
visits it has, and predicts with, the model it trained last, theta_i + Delta_i, not yet mixed (as in
FedFomo).

alpha starts at 0 (the paper does not say) and takes Adam steps, moments forgotten between rounds.
All N updates are downloaded (traffic 1 + N); alpha_i travels with them as N numbers. The paper is
decentralized and every node takes part in every round: with partial participation only the updates
of the last round and the client's own last one are mixed. The validation part is a keyed share of
the training samples, never trained on. Of the paper, pruning of neighbours and meta-L2C are left
out. BatchNorm statistics stay on the client.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import (
    Down,
    Ids,
    Local,
    Net,
    Server,
    SgdMethod,
    Ups,
    cross_entropy,
    hyper,
)
from idiolect.core.tree import Record, Tree
from idiolect.methods.shared import holdout
from idiolect.methods.shared.adam import adam


@dataclass(frozen=True)
class L2C(SgdMethod):
    """Clients learn how much of every client's update to take."""

    alpha_lr: float = hyper(0.1, "step size of alpha (Adam); 0: alpha stays as it starts", min=0)
    alpha_steps: int = hyper(1, "full-batch steps on alpha per round", min=0, needs="alpha_lr!=0")
    alpha_decay: float = hyper(0.0, "L2 decay of alpha", min=0, needs="alpha_lr!=0, alpha_steps!=0")
    alpha_self: float = hyper(0.0, "alpha_ii at the start; large: Local")
    val_share: float = hyper(0.2, "own samples alpha is learned on (0: all)", min=0, below=1)

    name = "l2c"
    paper = "Li et al., Learning to Collaborate in Decentralized Learning"
    year = 2022
    personal_part = "the whole model (mixed by the client), BatchNorm statistics"
    traffic = "1 + N"
    also_sent = ("update: weights",)  # to tell its own share of the mixture

    @property
    def revision(self) -> int:
        return 2 if self.val_share else 1  # judged samples went through training with weight zero

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        still = tree.expand(tree.zeros_like(tree.pick(start, net.weights)), len(clients))
        ones = tree.any_leaf(still).new_ones(len(clients), dtype=torch.float64)
        alpha = self.alpha_self * torch.diag(ones)
        return {"updates": tree.clone(still), "present": ones < 1, "alpha": alpha}

    def client_init(self, start: Tree, local: Local) -> Record:
        update = tree.zeros_like(tree.pick(start, local.net.weights))
        return {"base": start, "update": update}

    def download(self, server: Server, who: Ids) -> Down:
        ids = tree.beside(server.clients, server["alpha"])
        own = tree.beside(who, ids)[:, None] == ids  # nowhere for a client that never took part
        alpha = own.double() @ server["alpha"]
        shared = {"updates": server["updates"], "present": server["present"]}
        like = tree.any_leaf(server["updates"])
        return Down(shared, each={"alpha": alpha.to(like.dtype), "own": own})

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        judged, trained_on = holdout.split(local, self.val_share, "l2c")
        alpha = down["alpha"]
        if self.alpha_lr and self.alpha_steps:
            alpha = self._learn(judged, down, mine)
        local.log(own_weight=(self.mixing(alpha, down) * down["own"]).sum(1))
        base = self.mixture(alpha, down, mine)
        model = self.train(trained_on, base)
        update = tree.pick(tree.sub(model, base), local.net.weights)
        kept = base | tree.pick(model, local.net.stats)
        return {"update": update, "alpha": alpha}, {"base": kept, "update": update}

    def mixing(self, alpha: Tensor, down: Record) -> Tensor:
        """w `[K, N]`: softmax over those who have an update."""
        known = down["present"] | down["own"]
        known = known | ~known.any(1, keepdim=True)  # a newcomer before anybody trained
        return torch.softmax(alpha.masked_fill(~known, -torch.inf), 1)

    def mixture(self, alpha: Tensor, down: Record, mine: Record) -> Tree:
        """`theta_i + sum_j w_ij Delta_j`; an update of its own the server no longer has counts."""
        w = self.mixing(alpha, down)
        missing = (w * (down["own"] & ~down["present"])).sum(1)
        step = tree.add(tree.blend(w, down["updates"]), tree.scale(mine["update"], missing))
        return mine["base"] | tree.add(step, mine["base"])

    def _learn(self, judged: Local, down: Record, mine: Record) -> Tensor:
        alpha: Tensor = down["alpha"]
        m = v = {"alpha": torch.zeros_like(alpha)}
        for t in range(1, self.alpha_steps + 1):
            w = self.mixing(alpha, down)
            theta = self.mixture(alpha, down, mine)
            gradient, _, _ = judged.grad(cross_entropy, theta)
            own = (down["own"] & ~down["present"]) * tree.dot(gradient, mine["update"])[:, None]
            along = tree.products(gradient, down["updates"]) + own
            g = w * (along - (w * along).sum(1, keepdim=True)) + self.alpha_decay * alpha
            direction, m, v = adam({"alpha": g}, m, v, t)
            alpha = alpha - self.alpha_lr * direction["alpha"]
        return alpha

    def aggregate(self, server: Server, ups: Ups) -> None:
        position = server.position
        ids = tree.beside(server.clients, server["alpha"])
        own = tree.beside(ups.ids, ids)[:, None] == ids
        weight = self.mixing(ups["alpha"], {"present": server["present"], "own": own})
        server.log_clients(ups.ids, server.clients, aggregation_weight=weight)
        at = tree.beside([position[i] for i in ups.ids], ups.sizes)
        server["alpha"] = server["alpha"].index_copy(0, at, ups["alpha"].double())
        server["present"] = torch.zeros_like(server["present"]).index_fill(0, at, True)
        still = tree.zeros_like(server["updates"])
        server["updates"] = {n: x.index_copy(0, at, ups["update"][n]) for n, x in still.items()}
        server.log_clients(server.clients, server.clients, alpha=server["alpha"])

    def personal(self, down: Record, mine: Record) -> Tree:
        return mine["base"] | tree.add(mine["update"], mine["base"])
