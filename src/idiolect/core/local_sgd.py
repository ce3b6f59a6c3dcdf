"""The settings of clients that train by mini-batches, declared once for all methods that have them:
how much, by which optimizer, and how the learning rate changes over rounds."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from idiolect.core.fields import Checked, hyper
from idiolect.core.optimizer import Optimizer
from idiolect.errors import UserError


@dataclass(frozen=True)
class LocalSgd(Checked):
    """Local training: its hyperparameters."""

    lr: float = hyper(0.01, "client learning rate", above=0)
    epochs: int = hyper(1, "passes over the client's data per round", min=0, needs="steps=0")
    batch_size: int | Literal["full"] = hyper(32, "mini-batch size, or 'full'", min=1)
    steps: int = hyper(0, "mini-batches per round instead of epochs (0: use epochs)", min=0)
    weight_decay: float = hyper(0.0, "L2 penalty of local SGD", min=0)
    momentum: float = hyper(0.0, "momentum of local SGD", min=0, below=1, needs="optimizer=sgd")
    optimizer: Optimizer = hyper("sgd", "how clients step: SGD, Adam, or AdamW")
    clip: float = hyper(0.0, "longest gradient of a client; longer ones are cut (0: any)", min=0)
    keep_optimizer: bool = hyper(
        False, "momentum and Adam's means stay with the client from round to round"
    )
    lr_decay: float = hyper(1.0, "learning rate multiplier", above=0, needs="lr_schedule=step")
    lr_schedule: Literal["step", "cosine"] = hyper(
        "step", "learning rate times lr_decay every lr_every rounds, or half a cosine"
    )
    lr_every: int = hyper(
        1, "rounds from one lr_decay to the next", min=1, needs="lr_schedule=step, lr_decay!=1"
    )
    lr_rounds: int = hyper(
        0, "rounds of the cosine (0: all of the run)", min=0, needs="lr_schedule=cosine"
    )
    lr_warmup: int = hyper(0, "rounds in which the learning rate grows to its value", min=0)
    order: Literal["shuffled", "fixed", "class"] = hyper(
        "shuffled", "samples shuffled each epoch, as stored, or sorted by class"
    )
    drop_last: bool = hyper(False, "skip a partial batch (not the only)", needs="batch_size!=full")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs == 0 and self.steps == 0:
            raise UserError("method.epochs and method.steps are both 0: nothing would be trained")

    def over(self, rounds: int) -> Self:
        """In a run of so many rounds: a cosine over all of them, unless told otherwise."""
        if self.lr_schedule == "cosine" and not self.lr_rounds:
            return replace(self, lr_rounds=rounds)
        return self

    def lr_factor(self, round: int) -> float:
        """What learning rates are multiplied by in a round (from 0); never zero."""
        if self.lr_schedule == "cosine":
            ends = max(1, self.lr_rounds)
            factor = (1 + math.cos(math.pi * min(round, ends - 1) / ends)) / 2
        else:
            factor = self.lr_decay ** (round // self.lr_every)
        return factor * (round + 1) / self.lr_warmup if round < self.lr_warmup else factor

    @property
    def batches(self) -> dict[str, Any]:
        """How the clients' data is cut into mini-batches."""
        return {"batch_size": self.batch_size, "order": self.order, "drop_last": self.drop_last}

    def work(self, round: int) -> dict[str, Any]:
        """How much clients train in a round, and how gradients become steps."""
        return {
            "lr": self.lr * self.lr_factor(round),
            "epochs": self.epochs,
            "steps": self.steps,
            "weight_decay": self.weight_decay,
            "momentum": self.momentum,
            "optimizer": self.optimizer,
            "clip": self.clip,
            "keep": self.keep_optimizer,
        }
