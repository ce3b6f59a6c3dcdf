"""The arithmetic of one step of a stack: the loss K clients wide, and its gradients.

The loss of one client is made K wide by `vmap`. Client k's loss depends on client k's row alone, so
the gradient of the sum of all losses is every client's own gradient. Nothing here knows a client's
handle on its data, or whether steps are captured.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function

from idiolect.core import record, tree
from idiolect.core.local import Coupled, Loss
from idiolect.core.net import Net
from idiolect.core.record import Rows
from idiolect.core.tree import Tree
from idiolect.engine import layers
from idiolect.engine.descent import NO_PULL, Descent, Pull
from idiolect.engine.layers.steps_inside import StepsInside
from idiolect.engine.samples import Samples
from idiolect.engine.steps import Step


@dataclass
class StepState:
    """The tensors that steps read and change. A captured step has them in buffers of its own."""

    params: Tree  # [K, ...] the models, changed in place
    total: Tensor  # [K] what the steps sum up
    extra: tuple[Any, ...] = ()  # of the loss: [K, ...] trees and tensors, or `Rows`; a `Pull`
    x: Rows | None = None  # inputs that replace the samples'
    lr: float | Tensor = 0.0  # one for all, or [K]
    memory: Tree = field(default_factory=dict)  # [K, ...] of the optimizer (core/optimizer.py)


class StepKind(Protocol):
    """What a step does. Two that are equal do the same, so they may share a captured step."""

    @property
    def loss(self) -> StackedLoss: ...

    def memory(self, params: Tree) -> Tree:
        """What the optimizer remembers, before the first step."""

    def loss_scale(self, lr: float | Tensor, keep: Tensor) -> Tensor:
        """What each client's loss is multiplied by; `keep` is 1 for clients that take the step and
        0 for those that must not move."""

    def step(self, step: Step, state: StepState) -> None:
        """Take one step: change `state` in place."""


@dataclass(frozen=True)
class StackedLoss:
    """A loss of ONE client, made K clients wide."""

    fn: Loss
    net: Net
    samples: Samples
    moving: tuple[str, ...] = ()  # leaves that get a gradient
    coupled: Coupled = False

    def values(
        self, params: Tree, step: Step, extra: tuple[Any, ...], x: Rows | None = None
    ) -> Tensor:
        """What the loss returns for every client in the step: `[k, B]`, coupled `[k]`."""
        if step.inputs is not None:
            inputs = step.inputs
        else:
            inputs = self.samples.inputs(step.sample) if x is None else x.values[step.at]
        given = (params, inputs, step.y, *(step.part_of(e) for e in extra))
        fn: Callable[..., Tensor] = partial(self.fn, self.net)
        if step.weight is not None and self.net.couples:
            fn, given = layers.with_filling(fn), (step.weight, *given)
        if len(step.y) == 1:  # one client needs no vmap
            return fn(*(record.only(g) for g in given)).unsqueeze(0)
        return torch.vmap(fn, randomness="different")(*given)

    def value_and_grad(
        self,
        params: Tree,
        step: Step,
        extra: tuple[Any, ...],
        x: Rows | None = None,
        scale: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """Every client's mean loss `[k]`, and its gradient times the client's `scale` `[k]`."""
        leaf = {n: v.detach().requires_grad_(n in self.moving) for n, v in params.items()}
        out = self.values(leaf, step, extra, x)
        if out.ndim != (1 if self.coupled else 2):
            raise TypeError(
                "a loss returns one value per sample, or a scalar when passed with coupled=True; "
                f"got shape {tuple(out.shape[1:])} with coupled={self.coupled}"
            )
        values = out.detach()
        if self.coupled:
            share, mean = torch.ones_like(values), values
        elif step.weight is None:
            share, mean = torch.full_like(values, 1 / values.shape[1]), values.mean(1)
        else:
            share, mean = step.weight, (values * step.weight).sum(1)
        if scale is not None:
            share = share * tree.column(scale, share)
        leaves = [leaf[n] for n in self.moving]
        return mean, torch.autograd.grad(_Led.apply(out, share), leaves, allow_unused=True)


class _Led(Function):
    """A number without a value; its gradient is given. (To hand `torch.autograd.grad` the gradient
    of what it starts from makes it import symbolic maths, half a second.)"""

    @staticmethod
    def forward(ctx: Any, out: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return out.new_empty(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0], None


@dataclass(frozen=True)
class SgdStep:
    """A step of mini-batch SGD; the loss is summed up."""

    loss: StackedLoss
    repeat: int
    descent: Descent
    after: Callable[..., Tree] | None
    pulled: bool = False  # the last two of the extra arguments are a `Pull`

    def memory(self, params: Tree) -> Tree:
        return self.descent.memory(tree.pick(params, self.loss.moving))

    def loss_scale(self, lr: float | Tensor, keep: Tensor) -> Tensor:
        """Gradients come out with the length of the step where they may, which saves two passes
        over all parameters."""
        return lr * keep if self.descent.scales else keep

    def step(self, step: Step, state: StepState) -> None:
        extra, pull = self._extra(step, state)
        scale = step.loss_scale
        if scale is None:
            scale = self.loss_scale(_lr_of(step, state), torch.ones_like(step.size))
        for _ in range(self.repeat):
            part = record.select(state.params, step.who)
            moving = tree.pick(part, self.loss.moving)
            inside = StepsInside(moving) if self.descent.scales else None
            with inside or nullcontext():
                value, grads = self.loss.value_and_grad(part, step, extra, state.x, scale)
            known = {n: g for n, g in zip(self.loss.moving, grads, strict=True) if g is not None}
            if inside is None:
                self.descent.descend(step, _lr_of(step, state), state.memory, part, known, pull)
            else:
                gone = [n for n in moving if n in known or n in inside.names or n in pull[0]]
                self.descent.shrink(part, gone, scale, pull)
                torch._foreach_sub_([part[n] for n in known], list(known.values()))
                inside.take()
            record.put(state.params, step.who, part)
            _add(state.total, step.who, value, step.size)
        if self.after is not None:
            part = record.select(state.params, step.who)
            more = (step.part_of(e) for e in extra)
            for n, v in torch.vmap(self.after)(part, *more).items():
                if step.keep is not None:
                    v = torch.where(tree.column(step.keep.bool(), v), v, part[n])
                state.params[n][step.who] = v

    def _extra(self, step: Step, state: StepState) -> tuple[tuple[Any, ...], Pull]:
        """The extra arguments of the loss, and what the clients of the step are pulled to."""
        if not self.pulled:
            return state.extra, NO_PULL
        anchor, strength = (step.part_of(e) for e in state.extra[-2:])
        return state.extra[:-2], (tree.pick(anchor, self.loss.moving), strength)


def _add(total: Tensor, who: slice | Tensor, value: Tensor, times: Tensor) -> None:
    if isinstance(who, slice):  # a view: one kernel instead of three
        total[who].addcmul_(value, times)
    else:
        total[who] += value * times


def _lr_of(step: Step, state: StepState) -> float | Tensor:
    """The learning rate of the clients in a step."""
    one_for_all = not isinstance(state.lr, Tensor) or state.lr.ndim == 0
    return state.lr if one_for_all else record.select(state.lr, step.who)


@dataclass(frozen=True)
class SquaredNormStep:
    """No step at all: the squared norms of the batches' gradients are summed up."""

    loss: StackedLoss

    def memory(self, params: Tree) -> Tree:
        return {}

    def loss_scale(self, lr: float | Tensor, keep: Tensor) -> Tensor:
        return keep

    def step(self, step: Step, state: StepState) -> None:
        part = record.select(state.params, step.who)
        _, grads = self.loss.value_and_grad(part, step, state.extra, scale=step.loss_scale)
        norms = [g.reshape(len(g), -1).square().sum(1) for g in grads if g is not None]
        state.total[step.who] += torch.stack(norms).sum(0)


@dataclass(frozen=True)
class SampleSquaredNormStep:
    """The same for every sample on its own; not captured."""

    loss: StackedLoss

    def step(self, step: Step, state: StepState) -> None:
        part, loss = record.select(state.params, step.who), self.loss
        each = StackedLoss(self._of_client, loss.net, loss.samples)
        squares = each.values(part, step, state.extra)
        real = 1.0 if step.weight is None else (step.weight > 0).to(squares.dtype)
        state.total[step.who] += (squares.detach() * real).sum(1)

    def _of_client(self, net: Net, params: Tree, x: Tensor, y: Tensor, *extra: Any) -> Tensor:
        """`[B]` of ONE client."""
        return torch.vmap(partial(self._of_sample, net, params))(x, y, *extra)

    def _of_sample(self, net: Net, params: Tree, x: Tensor, y: Tensor, *extra: Any) -> Tensor:
        def value(weights: Tree) -> Tensor:
            return self.loss.fn(net, params | weights, x[None], y[None], *extra).mean()

        grads = torch.func.grad(value)({n: params[n] for n in self.loss.moving})
        return torch.stack([g.square().sum() for g in grads.values()]).sum()
