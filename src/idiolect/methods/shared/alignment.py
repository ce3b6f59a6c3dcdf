"""Parameter alignment (FedAS, Eq. 2-4): what a client receives learns the features of what it had.

Manner and target are those of FedAS's Figure 4b. 'serial' aligns before training (the method);
'parallel' adds the alignment to the loss of training. 'local' features are those of the client's
previous model (the method); for 'global' ones, which the paper does not define, those of the
received model on the client's data are taken.
"""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Local, Net, Rows, SgdMethod, Tree, features, hyper

ALIGNED = "align=true"
SERIAL = "align=true, align_manner=serial"


def match_sample(net: Net, params: Tree, x: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """Squared distance to the features the client's previous base gave the same sample (Eq. 2)."""
    return (net.features(params, x) - target).square().sum(1)


def match_class_mean(net: Net, params: Tree, x: Tensor, y: Tensor, means: Tensor) -> Tensor:
    """Sum over the classes in the batch of the mean squared error to the class's mean feature."""
    return _class_error(net.features(params, x), y, means)


def train_and_match_sample(
    net: Net, params: Tree, x: Tensor, y: Tensor, target: Tensor, weight: Tensor
) -> Tensor:
    h = net.features(params, x)
    loss = net.loss_of(net.classify(params, h), y)
    return loss + weight * (h - target).square().sum(1)


def train_and_match_class_mean(
    net: Net, params: Tree, x: Tensor, y: Tensor, means: Tensor, weight: Tensor
) -> Tensor:
    h, real = net.features(params, x), y >= 0
    loss = net.loss_of(net.classify(params, h), y.clamp_min(0))
    return (loss * real).sum() / real.sum().clamp_min(1) + weight * _class_error(h, y, means)


def _class_error(h: Tensor, y: Tensor, means: Tensor) -> Tensor:
    error = (h - means[y]).square().mean(1)
    same = (y[:, None] == y[None, :]).sum(1)
    return (error / same * (y >= 0)).sum()


@dataclass(frozen=True)
class Alignment(SgdMethod):
    """What alignment adds to a method: its settings, and training with it."""

    align: bool = hyper(True, "parameter alignment (FedAS, Eq. 2-4)")
    align_manner: Literal["serial", "parallel"] = hyper(
        "serial", "before training, or in its loss (FedAS, Fig. 4b)", needs=ALIGNED
    )
    align_to: Literal["local", "global"] = hyper(
        "local", "features of the client's previous model, or of the received one", needs=ALIGNED
    )
    align_lr: float = hyper(0.01, "step size of the alignment", min=0, needs=SERIAL)
    align_epochs: int = hyper(1, "epochs of the alignment", min=1, needs=SERIAL)
    align_batch_size: int | Literal["full", "same"] = hyper(
        "same", "its mini-batch size", min=1, needs=SERIAL
    )
    align_weight: float = hyper(
        1.0, "its weight in the loss", min=0, needs="align=true, align_manner=parallel"
    )
    target: Literal["class_mean", "sample"] = hyper("class_mean", "its target", needs=ALIGNED)

    @property
    def has_fixed_loss(self) -> bool:
        return self.align and self.align_manner == "parallel"

    def aligned(self, local: Local, received: Tree, previous: Tree, part: Tree) -> Tree:
        """The model before training: `part` of it, which was received, is aligned."""
        if not self.align or self.align_manner == "parallel":
            return received
        how = self.batches | {"lr": self.align_lr, "epochs": self.align_epochs, "train": part}
        if self.align_batch_size != "same":
            how["batch_size"] = self.align_batch_size
        goal, coupled = self._goal(local, received, previous, how["batch_size"])
        loss = match_class_mean if coupled else match_sample
        how |= {"extra": (goal,), "coupled": coupled, "purpose": "align", "report": False}
        moved = local.sgd(loss, received, **how).params
        return tree.overlay(tree.crop(moved, part), received)  # personal channels as they were

    def train_aligned(self, local: Local, model: Tree, previous: Tree) -> Tree:
        """Local training, with alignment as a part of its loss where that is wanted."""
        if not self.align or self.align_manner == "serial":
            return self.train(local, model)
        goal, coupled = self._goal(local, model, previous, self.batch_size)
        loss = train_and_match_class_mean if coupled else train_and_match_sample
        extra = (goal, local.each(self.align_weight))
        return self.train(local, model, loss, extra=extra, coupled=coupled)

    def _goal(
        self, local: Local, received: Tree, previous: Tree, batch_size: Any
    ) -> tuple[Rows | Tensor, Literal["filled"] | bool]:
        """The features to learn, per sample or per class; the latter ties a batch together."""
        target = local.forward(features, previous if self.align_to == "local" else received)
        if self.target == "sample":
            return target, False
        # As published: a sample that no batch ever holds does not count for the mean either.
        never_held = self.drop_last and self.order != "shuffled"
        held = self.batches | {"batch_size": batch_size} if never_held else {}
        return local.class_mean(target, **held), "filled"
