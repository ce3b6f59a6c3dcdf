"""What a stack of clients does with its data, step by step: training, and squared gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.local import Coupled, Rows, Sgd
from idiolect.core.method import Loss
from idiolect.core.net import Net
from idiolect.core.tree import Tree
from idiolect.engine.steps import Step, Steps

if TYPE_CHECKING:
    from idiolect.engine.stacked_local import StackedLocal


class Work(ABC):
    """What is done with every batch of a stack, and summed per client."""

    local: StackedLocal
    loss: Loss
    net: Net
    moving: list[str]
    steps: Steps
    x: Rows | None = None
    coupled: Coupled = False
    lr: float | Tensor = 0.0
    velocity: Tree
    settings: tuple[Any, ...] = ()  # whatever else a captured step depends on

    def velocity_of(self, stack: Tree) -> Tree:
        """Zero velocities, if there is momentum."""
        return {}

    def run(self, stack: Tree, extra: tuple[Any, ...]) -> Tensor:
        """All steps, the stack changed in place; returns the sums."""
        total = torch.zeros_like(self.local.sizes)
        self.velocity = self.velocity_of(stack)
        for step in self.steps:
            self.step(step, stack, extra, total)
        return total

    @abstractmethod
    def step(
        self,
        step: Step,
        stack: Tree,
        extra: tuple[Any, ...],
        total: Tensor,
        keep: Tensor | None = None,
    ) -> None:
        """One step; `keep` is 1 for the clients that take it, 0 for those that must not move."""


class Training(Work):
    """Mini-batch SGD of a stack; sums the loss."""

    def __init__(
        self,
        local: StackedLocal,
        loss: Loss,
        how: Sgd,
        moving: list[str],
        x: Rows | None,
        coupled: Coupled,
        steps: Steps,
    ):
        self.local, self.loss, self.how, self.moving = local, loss, how, moving
        self.x, self.coupled, self.steps = x, coupled, steps
        self.net = local.train_net
        self.lr = reorder(how.lr, steps.order) if isinstance(how.lr, Tensor) else how.lr
        self.settings = (how.repeat, how.weight_decay, how.momentum, how.after)

    def velocity_of(self, stack: Tree) -> Tree:
        return tree.zeros_like(tree.pick(stack, self.moving)) if self.how.momentum else {}

    def step(
        self,
        step: Step,
        stack: Tree,
        extra: tuple[Any, ...],
        total: Tensor,
        keep: Tensor | None = None,
    ) -> None:
        for _ in range(self.how.repeat):
            part = take(stack, step.who)
            scale = self._scale(step, keep)
            value, grads = self.local.value_and_grad(
                self.loss, self.net, part, self.moving, step, extra, self.x, self.coupled, scale
            )
            pairs = [(n, g) for n, g in zip(self.moving, grads, strict=True) if g is not None]
            self._descend(step, part, [n for n, _ in pairs], [g for _, g in pairs], keep)
            put(stack, step.who, part)
            total[step.who] += value * step.size
        if self.how.after is not None:
            part, more = take(stack, step.who), (cut(e, step) for e in extra)
            for n, v in torch.vmap(self.how.after)(part, *more).items():
                if keep is not None:
                    v = torch.where(tree.column(keep.bool(), v), v, part[n])
                stack[n][step.who] = v

    @property
    def _plain(self) -> bool:
        """Steps are the gradient times the learning rate and nothing else."""
        return not (self.how.weight_decay or self.how.momentum)

    def _scale(self, step: Step, keep: Tensor | None) -> Tensor | None:
        """What each client's loss is multiplied by: plain steps come out with their length, which
        saves two passes over all parameters."""
        if not self._plain:
            return keep
        lr = self.lr[step.who] if isinstance(self.lr, Tensor) and self.lr.ndim else self.lr
        return lr * (torch.ones_like(step.size) if keep is None else keep)

    def _descend(
        self,
        step: Step,
        part: Tree,
        names: list[str],
        delta: list[Tensor],
        keep: Tensor | None,
    ) -> None:
        moved = [part[n] for n in names]
        if self._plain:
            torch._foreach_sub_(moved, delta)
            return
        if self.how.weight_decay:
            torch._foreach_add_(delta, moved, alpha=self.how.weight_decay)
        if self.how.momentum:
            speed = take({n: self.velocity[n] for n in names}, step.who)
            grown = [v * self.how.momentum + d for v, d in zip(speed.values(), delta, strict=True)]
            if keep is not None:
                grown = _only(keep, grown, list(speed.values()))
            torch._foreach_copy_(list(speed.values()), grown)
            put(self.velocity, step.who, speed)
            delta = grown
        if keep is not None:
            delta = [d * tree.column(keep, d) for d in delta]
        if not isinstance(self.lr, Tensor):
            torch._foreach_add_(moved, delta, alpha=-self.lr)
        elif self.lr.ndim == 0:
            torch._foreach_sub_(moved, torch._foreach_mul(delta, self.lr))
        else:
            size = self.lr[step.who]
            torch._foreach_sub_(moved, [d * tree.column(size, d) for d in delta])


class Squares(Work):
    """Squared gradient norms of a stack, summed over batches or samples."""

    def __init__(self, local: StackedLocal, loss: Loss, moving: list[str], steps: Steps):
        self.local, self.loss, self.moving, self.steps = local, loss, moving, steps
        self.net = local.net

    def step(
        self,
        step: Step,
        stack: Tree,
        extra: tuple[Any, ...],
        total: Tensor,
        keep: Tensor | None = None,
    ) -> None:
        part = take(stack, step.who)
        _, grads = self.local.value_and_grad(
            self.loss, self.net, part, self.moving, step, extra, scale=keep
        )
        norms = [g.reshape(len(g), -1).square().sum(1) for g in grads if g is not None]
        total[step.who] += torch.stack(norms).sum(0)

    def per_sample(self, stack: Tree, extra: tuple[Any, ...]) -> Tensor:
        total = torch.zeros_like(self.local.sizes)

        def one(net: Net, p: Tree, x: Tensor, y: Tensor, *more: Any) -> Tensor:
            return torch.vmap(lambda *sample: self._square(net, p, sample))(x, y, *more)

        for step in self.steps:
            squares = self.local.wide(one, self.net, take(stack, step.who), step, extra)
            real = 1.0 if step.weight is None else (step.weight > 0).to(squares.dtype)
            total[step.who] += (squares.detach() * real).sum(1)
        return total

    def _square(self, net: Net, p: Tree, sample: tuple[Any, ...]) -> Tensor:
        """Squared gradient norm of one sample of one client."""
        x, y, *more = sample

        def value(w: Tree) -> Tensor:
            return self.loss(net, p | w, x[None], y[None], *more).mean()

        grads = torch.func.grad(value)({n: p[n] for n in self.moving})
        return torch.stack([g.square().sum() for g in grads.values()]).sum()


def _only(keep: Tensor, new: list[Tensor], old: list[Tensor]) -> list[Tensor]:
    """The new values of the clients that are kept, the old ones of the others."""
    pairs = zip(new, old, strict=True)
    return [torch.where(tree.column(keep.bool(), a), a, b) for a, b in pairs]


def take(stack: Tree, who: slice | Tensor) -> Tree:
    return {n: v[who] for n, v in stack.items()}


def put(stack: Tree, who: slice | Tensor, part: Tree) -> None:
    """Write rows back; a slice is a view and is there already."""
    if isinstance(who, Tensor):
        for n, v in part.items():
            stack[n][who] = v


def reorder(what: Any, order: Tensor | None) -> Any:
    """A tree, or an extra argument, with its clients in another order; None: as they are."""
    if isinstance(what, Rows) or order is None:
        return what
    if isinstance(what, dict):
        return {n: v[order] for n, v in what.items()}
    return what[order]


def copied(stack: Tree, order: Tensor | None) -> Tree:
    """A tree of its own, with its clients in another order."""
    if order is None:
        return {n: v.clone(memory_format=torch.contiguous_format) for n, v in stack.items()}
    return {n: v[order] for n, v in stack.items()}


def cut(extra: Any, step: Step) -> Any:
    """The part of an extra argument that a step needs."""
    if isinstance(extra, Rows):
        return extra.values[step.at]
    if isinstance(extra, dict):
        return take(extra, step.who)
    return extra[step.who]
