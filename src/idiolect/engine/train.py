"""The arithmetic of one step of a stack: the loss K clients wide, and its gradients.

The loss of one client is made K wide by `vmap`. Client k's loss depends on client k's row alone, so
the gradient of the sum of all losses is every client's own gradient. Nothing here knows a client's
handle on its data, or whether steps are captured.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, Self

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
    # By range of clients: views of `params`, which is not replaced once steps are taken.
    _models: dict[tuple[int, int], StepModels] = field(default_factory=dict, repr=False)

    def models(self, who: slice | Tensor, moving: Collection[str]) -> StepModels:
        """The models of some clients. Those of a range are views, made once for all its steps."""
        if isinstance(who, Tensor):
            return StepModels.of(record.select(self.params, who), moving)
        key = who.start, who.stop
        if key not in self._models:
            self._models[key] = StepModels.of(record.select(self.params, who), moving)
        return self._models[key]


class StepModels(NamedTuple):
    """The models of the clients in a step, three times the same memory."""

    rows: Tree  # [k, ...] changed in place
    own: Tree  # without the axis of clients where there is one client
    leaf: Tree  # that, as leaves of a gradient

    @classmethod
    def of(cls, rows: Tree, moving: Collection[str]) -> Self:
        alone = len(tree.any_leaf(rows)) == 1
        own = record.only(rows) if alone else rows
        return cls(rows, own, {n: v.detach().requires_grad_(n in moving) for n, v in own.items()})

    def with_clients(self, grads: Tree) -> Tree:
        """Gradients of leaves as those of rows."""
        return {n: g.view_as(self.rows[n]) for n, g in grads.items()}


class StepKind(Protocol):
    """What a step does. Two that are equal do the same, so they may share a captured step."""

    @property
    def loss(self) -> StackedLoss: ...

    def memory(self, params: Tree) -> Tree:
        """What the optimizer remembers, before the first step."""

    def loss_scale(self, lr: float | Tensor, keep: Tensor | float = 1.0) -> Tensor | float:
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
        alone = len(step.y) == 1
        return self._values(record.only(params) if alone else params, step, extra, x)

    def _values(
        self, params: Tree, step: Step, extra: tuple[Any, ...], x: Rows | None = None
    ) -> Tensor:
        """The same; the parameters of a client that is alone in the step have no client axis."""
        if step.inputs is not None:
            inputs = step.inputs
        else:
            inputs = self.samples.inputs(step.sample) if x is None else x.values[step.at]
        given = (inputs, step.y, *(step.part_of(e) for e in extra))
        fn: Callable[..., Tensor] = partial(self.fn, self.net)
        if step.weight is not None and self.net.couples:
            fn, given = layers.with_filling(fn), (step.weight, *given)
        if len(step.y) == 1:  # one client needs no vmap
            return fn(params, *(record.only(g) for g in given)).unsqueeze(0)
        return torch.vmap(fn, randomness="different")(params, *given)

    def value_and_grad(
        self,
        models: StepModels,
        step: Step,
        extra: tuple[Any, ...],
        x: Rows | None = None,
        scale: float | Tensor = 1.0,
    ) -> tuple[Tensor, Tree]:
        """Every client's mean loss `[k]`, and the gradient of the leaves it has one for, times the
        client's `scale` `[k]`."""
        out = self._values(models.leaf, step, extra, x)
        if out.ndim != (1 if self.coupled else 2):
            raise TypeError(
                "a loss returns one value per sample, or a scalar when passed with coupled=True; "
                f"got shape {tuple(out.shape[1:])} with coupled={self.coupled}"
            )
        values = out.detach()
        share: float | Tensor = 1.0
        if self.coupled:
            mean = values
        elif step.weight is None:
            share, mean = 1 / values.shape[1], values.mean(1)
        else:
            share, mean = step.weight, (values * step.weight).sum(1)
        if isinstance(scale, Tensor):
            scale = tree.column(scale, values)
        led = share * scale
        led = led.expand_as(values) if isinstance(led, Tensor) else torch.full_like(values, led)
        leaves = [models.leaf[n] for n in self.moving]
        grads = torch.autograd.grad(_Led.apply(out, led), leaves, allow_unused=True)
        found = zip(self.moving, grads, strict=True)
        return mean, {n: g for n, g in found if g is not None}


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

    def loss_scale(self, lr: float | Tensor, keep: Tensor | float = 1.0) -> Tensor | float:
        """Gradients come out with the length of the step where they may, which saves two passes
        over all parameters."""
        return lr * keep if self.descent.scales else keep

    def step(self, step: Step, state: StepState) -> None:
        extra, pull = self._extra(step, state)
        scale: float | Tensor = self.loss_scale(_lr_of(step, state))
        if step.loss_scale is not None:
            scale = step.loss_scale
        for _ in range(self.repeat):
            models = state.models(step.who, self.loss.moving)
            part, moving = models.rows, tree.pick(models.rows, self.loss.moving)
            inside = StepsInside(moving) if self.descent.scales else None
            with inside or nullcontext():
                value, grads = self.loss.value_and_grad(models, step, extra, state.x, scale)
            if inside is None:
                grads = models.with_clients(grads)
                self.descent.descend(step, _lr_of(step, state), state.memory, part, grads, pull)
            else:
                gone = [n for n in moving if n in grads or n in inside.names or n in pull[0]]
                self.descent.shrink(part, gone, scale, pull)
                if grads:
                    torch._foreach_sub_([models.own[n] for n in grads], list(grads.values()))
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

    def loss_scale(self, lr: float | Tensor, keep: Tensor | float = 1.0) -> Tensor | float:
        return keep

    def step(self, step: Step, state: StepState) -> None:
        models = state.models(step.who, self.loss.moving)
        scale = 1.0 if step.loss_scale is None else step.loss_scale
        _, grads = self.loss.value_and_grad(models, step, state.extra, scale=scale)
        norms = [g.reshape(len(step.y), -1).square().sum(1) for g in grads.values()]
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
