"""A stack of clients: what a method sees of K of them at once.

Each leaf of the tree is `[K, ...]`; the loss of one client is made K wide by `vmap`, and because
client k's loss depends on client k's row alone, the gradient of the sum is every client's own
gradient. A last partial batch is filled up with weight-zero samples, except where samples of a
batch depend on one another (BatchNorm, coupled losses that do not know filling): there clients are
grouped by exact size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.local import Coupled, Order, Plan, Rows, Sgd, Trained
from idiolect.core.method import Loss
from idiolect.core.net import Net
from idiolect.core.tree import Tree
from idiolect.engine.cuda_graphs import Graphs
from idiolect.engine.engine import EVAL_BATCH, DataLocal
from idiolect.engine.loop import dropout_seed
from idiolect.engine.steps import Step, Steps
from idiolect.engine.train import Squares, Training, copied, cut, put, reorder, take


class StackedLocal(DataLocal):
    """K clients at once."""

    graphs: Graphs | None = None  # replayed steps on a GPU

    def _sgd(
        self,
        loss: Loss,
        params: Tree,
        how: Sgd,
        moving: list[str],
        extra: tuple[Any, ...],
        x: Rows | None,
        coupled: Coupled,
        start: Tensor,
    ) -> Trained:
        merge = self.train_net.couples
        steps = self._steps(how, coupled is True or merge, start.tolist(), merge)
        training = Training(self, loss, how, moving, x, coupled, steps)
        extra = tuple(reorder(e, steps.order) for e in extra)
        with dropout_seed(self.device, how.purpose, self):
            if self.graphs is not None and self.graphs.suits(training):
                buffers, total = self.graphs.run(training, reorder(params, steps.order), extra)
                trained = copied(buffers, steps.back)
            else:
                stack = copied(params, steps.order)
                total = training.run(stack, extra)
                trained = reorder(stack, steps.back)
        seen = how.repeat * steps.size.sum(0)
        self.samples_seen += how.repeat * steps.samples
        mean = reorder(total / seen.clamp_min(1), steps.back)
        taken = how.repeat * (steps.size > 0).sum(0)
        return Trained(trained, mean, reorder(taken.to(self.dtype), steps.back))

    def _grad(
        self,
        loss: Loss,
        params: Tree,
        moving: list[str],
        extra: tuple[Any, ...],
        training: bool,
    ) -> tuple[Tree, Tensor, Tree]:
        net = self.train_net if training else self.net
        steps = self._steps(Plan("full" if training else EVAL_BATCH, order="fixed"), net.couples)
        stack = copied(params, steps.order)
        extra = tuple(reorder(e, steps.order) for e in extra)
        share_of = reorder(self.sizes, steps.order)
        grad = {n: torch.zeros_like(stack[n]) for n in moving}
        total = torch.zeros_like(self.sizes)
        with dropout_seed(self.device, "grad", self):
            for step in steps:
                part = take(stack, step.who)
                value, grads = self.value_and_grad(loss, net, part, moving, step, extra)
                share = step.size / share_of[step.who]
                for n, g in zip(moving, grads, strict=True):
                    if g is not None:
                        grad[n][step.who] += g * tree.column(share, g)
                total[step.who] += value * share
                put(stack, step.who, part)
        self.samples_seen += steps.samples
        order = steps.back
        return reorder(grad, order), reorder(total, order), reorder(stack, order)

    def squared_grad(
        self,
        loss: Loss,
        params: Tree,
        *,
        batch_size: int | Literal["full"] = 32,
        order: Order = "fixed",
        drop_last: bool = False,
        per_sample: bool = False,
        extra: Sequence[Any] = (),
    ) -> tuple[Tensor, Tensor]:
        plan = Plan(16 if per_sample else batch_size, order=order, drop_last=drop_last)
        plan = replace(plan, purpose="trace")
        steps = self._steps(plan, False)
        stack = reorder(params, steps.order)
        extra = tuple(reorder(e, steps.order) for e in extra)
        moving = [n for n in self.net.weights if n in params]
        squares = Squares(self, loss, moving, steps)
        if per_sample:
            total, count = squares.per_sample(stack, extra), steps.size.sum(0)
        else:
            if self.graphs is not None and self.graphs.suits(squares):
                _, total = self.graphs.run(squares, stack, extra)
            else:
                total = squares.run(stack, extra)
            count = (steps.size > 0).to(self.dtype).sum(0)
        return reorder(total, steps.back), reorder(count, steps.back)

    @torch.no_grad()
    def forward(self, fn: Loss, params: Tree, *, extra: Sequence[Any] = ()) -> Rows:
        steps = self._steps(Plan(EVAL_BATCH, order="fixed"), False)
        stack = reorder(params, steps.order)
        extra = tuple(reorder(e, steps.order) for e in extra)
        rows: Tensor | None = None
        for step in steps:
            out = self.wide(fn, self.net, take(stack, step.who), step, extra)
            if rows is None:
                rows = out.new_zeros(self.offsets[-1], *out.shape[2:])
            real = slice(None) if step.weight is None else step.weight > 0
            rows[step.at[real]] = out[real]
        assert rows is not None
        return Rows(rows)

    def _steps(
        self, plan: Plan, exact: bool, start: Sequence[int] | None = None, merge: bool = False
    ) -> Steps:
        begin = start or [0] * len(self.ids)
        tables = [
            plan.table(y, *key, self.round, s, merge)
            for y, key, s in zip(self.y_host, self.keys, begin, strict=True)
        ]
        return Steps(tables, self.offsets, self.device, self.dtype, exact)

    # --- K clients wide ---

    def wide(
        self,
        fn: Loss,
        net: Net,
        part: Tree,
        step: Step,
        extra: tuple[Any, ...],
        x: Rows | None = None,
        filled: bool = False,
    ) -> Tensor:
        """`fn` of every client in the step; `filled`: it knows filling by the label -1."""
        given = self.index[step.at]
        y = self.data.y[given]
        if filled and step.weight is not None:
            y = torch.where(step.weight > 0, y, -1)
        inputs = self.data.inputs(given) if x is None else x.values[step.at]
        more = tuple(cut(e, step) for e in extra)

        def one(p: Tree, x: Tensor, y: Tensor, *more: Any) -> Tensor:
            return fn(net, p, x, y, *more)

        everything = (part, inputs, y, *more)
        if len(given) == 1:  # nothing to be made wide
            return one(*(_only_row(x) for x in everything)).unsqueeze(0)
        return torch.vmap(one, randomness="different")(*everything)

    def value_and_grad(
        self,
        loss: Loss,
        net: Net,
        part: Tree,
        moving: list[str],
        step: Step,
        extra: tuple[Any, ...],
        x: Rows | None = None,
        coupled: Coupled = False,
        scale: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """Every client's loss `[k]` and gradient, the gradient times the client's `scale`."""
        leaf = {n: v.detach().requires_grad_(n in moving) for n, v in part.items()}
        out = self.wide(loss, net, leaf, step, extra, x, coupled == "filled")
        if out.ndim != (1 if coupled else 2):
            raise TypeError(
                "a loss returns one value per sample, or a scalar when passed with coupled=True; "
                f"got shape {tuple(out.shape[1:])} with coupled={coupled}"
            )
        if not coupled:
            out = out.mean(1) if step.weight is None else (out * step.weight).sum(1)
        total = out.sum() if scale is None else out @ scale
        grads = torch.autograd.grad(total, [leaf[n] for n in moving], allow_unused=True)
        return out.detach(), grads


def _only_row(x: Any) -> Any:
    return {n: v.squeeze(0) for n, v in x.items()} if isinstance(x, dict) else x.squeeze(0)
