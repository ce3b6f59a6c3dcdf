"""Ditto (Li et al., 2021): FedAvg, and beside it a personal model pulled towards the global one.

    v_k <- v_k - lr (grad F_k(v_k) + lambda (v_k - w_t))      (Algorithm 1, Eq. 1)

The personal model v_k never leaves the client and is the one it predicts with. What it sends is
FedAvg's model, which does not depend on v_k. Global and personal steps see the same mini-batches,
as in the authors' program. lambda = 0.1 is one of the values (0.1, 1, 2) the authors choose from;
lambda = 0, the default of other libraries, is Local.

In paper and program w_t is the model received. With personal_steps='after' the personal steps come
after the global ones and are pulled to the client's own freshly trained copy of it instead.
"""

from dataclasses import dataclass
from typing import Any, Literal

from idiolect.core import tree
from idiolect.core.method import Local, Record, Tree, hyper
from idiolect.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Ditto(FedAvg):
    """A personal model per client, regularised towards the global one."""

    lam: float = hyper(0.1, "lambda: pull to the global model (0: Local)", min=0)
    personal_lr: float = hyper(0.0, "learning rate of the personal steps (0: lr)", min=0)
    personal_epochs: int = hyper(0, "epochs of the personal steps (0: as the global ones)", min=0)
    personal_steps: Literal["before", "after"] = hyper(
        "before", "the global steps, pulled to the received model; or after, to the trained one"
    )

    name = "ditto"
    paper = "Li et al., Ditto: Fair and Robust FL Through Personalization"
    year = 2021
    personal_part = "a second whole model"
    trainings = 2

    def client_init(self, start: Tree, local: Local) -> Record:
        return {"model": start}

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        if self.personal_steps == "before":
            own = self._personalize(local, mine["model"], down["model"])
            return super().fit(down, {"model": own}, local)
        up, _ = super().fit(down, mine, local)
        return up, {"model": self._personalize(local, mine["model"], up["model"])}

    def _personalize(self, local: Local, own: Tree, towards: Tree) -> Tree:
        how: dict[str, Any] = {}
        if self.personal_lr:
            how["lr"] = self.personal_lr * self.lr_factor(local.round)
        if self.personal_epochs:
            how |= {"epochs": self.personal_epochs, "steps": 0}
        anchor = tree.pick(towards, local.net.weights)
        return self.train(local, own, pull=(anchor, local.each(self.lam)), **how)

    def personal(self, down: Record, mine: Record) -> Tree:
        return mine["model"]
