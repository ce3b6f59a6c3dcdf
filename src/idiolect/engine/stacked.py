"""All clients of the round in one kernel.

Each leaf of the tree is `[K, ...]`; the loss of one client is made K wide by `vmap`, and because
client k's loss depends on client k's row alone, the gradient of the sum is every client's own
gradient. A last partial batch is filled up with weight-zero samples, except where samples of a
batch depend on one another (BatchNorm, coupled losses): there clients are grouped by exact size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from idiolect import tree
from idiolect.engine.base import DataLocal, Engine, Part
from idiolect.engine.graphs import Graphs
from idiolect.engine.loop import dropout_seed
from idiolect.engine.steps import Step, Steps
from idiolect.local import Order, Plan, Rows, Sgd
from idiolect.method import Loss
from idiolect.net import Net
from idiolect.tree import Tree

EVAL_BATCH = 512


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
        coupled: bool,
        start: Tensor,
    ) -> Tree:
        merge = self.train_net.couples
        steps = self._steps(how, coupled or merge, start.tolist(), merge)
        training = Training(self, loss, how, moving, x, coupled, steps)
        stack = {n: v[steps.order] for n, v in params.items()}
        extra = tuple(reorder(e, steps.order) for e in extra)
        with dropout_seed(self.device, how.purpose, self):
            if self.graphs is not None and self.graphs.suits(training, extra):
                stack, total = self.graphs.run(training, stack, extra)
            else:
                total = training.run(stack, extra)
        seen = how.repeat * steps.size.sum(0)
        self.samples_seen += how.repeat * steps.samples
        self.losses[how.purpose] = (total / seen.clamp_min(1))[steps.back]
        taken = how.repeat * (steps.size > 0).sum(0)
        self.steps[how.purpose] = taken.to(self.dtype)[steps.back]
        return {n: v[steps.back] for n, v in stack.items()}

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
        stack = {n: v[steps.order] for n, v in params.items()}
        extra = tuple(reorder(e, steps.order) for e in extra)
        share_of = self.sizes[steps.order]
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
        back = {n: v[steps.back] for n, v in grad.items()}
        return back, total[steps.back], {n: v[steps.back] for n, v in stack.items()}

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
        stack = {n: v[steps.order] for n, v in params.items()}
        extra = tuple(reorder(e, steps.order) for e in extra)
        moving = [n for n in self.net.weights if n in params]
        squares = Squares(self, loss, moving, steps)
        if per_sample:
            total, count = squares.per_sample(stack, extra), steps.size.sum(0)
        else:
            if self.graphs is not None and self.graphs.suits(squares, extra):
                _, total = self.graphs.run(squares, stack, extra)
            else:
                total = squares.run(stack, extra)
            count = (steps.size > 0).to(self.dtype).sum(0)
        return total[steps.back], count[steps.back]

    @torch.no_grad()
    def forward(self, fn: Loss, params: Tree, *, extra: Sequence[Any] = ()) -> Rows:
        steps = self._steps(Plan(EVAL_BATCH, order="fixed"), False)
        stack = {n: v[steps.order] for n, v in params.items()}
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
    ) -> Tensor:
        """`fn` of every client in the step."""
        given = self.index[step.at]
        inputs = self.data.inputs(given) if x is None else x.values[step.at]
        more = tuple(cut(e, step) for e in extra)

        def one(p: Tree, x: Tensor, y: Tensor, *more: Any) -> Tensor:
            return fn(net, p, x, y, *more)

        return torch.vmap(one, randomness="different")(part, inputs, self.data.y[given], *more)

    def value_and_grad(
        self,
        loss: Loss,
        net: Net,
        part: Tree,
        moving: list[str],
        step: Step,
        extra: tuple[Any, ...],
        x: Rows | None = None,
        coupled: bool = False,
        keep: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """Every client's loss `[k]` and gradient; `keep` switches clients off (0) or on (1)."""
        leaf = {n: v.detach().requires_grad_(n in moving) for n, v in part.items()}
        out = self.wide(loss, net, leaf, step, extra, x)
        if out.ndim != (1 if coupled else 2):
            raise TypeError(
                "a loss returns one value per sample, or a scalar when passed with coupled=True; "
                f"got shape {tuple(out.shape[1:])} with coupled={coupled}"
            )
        if not coupled:
            out = out.mean(1) if step.weight is None else (out * step.weight).sum(1)
        if keep is not None:
            out = out * keep
        grads = torch.autograd.grad(out.sum(), [leaf[n] for n in moving], allow_unused=True)
        return out.detach(), grads


class Training:
    """Mini-batch SGD of a stack, step by step."""

    def __init__(
        self,
        local: StackedLocal,
        loss: Loss,
        how: Sgd,
        moving: list[str],
        x: Rows | None,
        coupled: bool,
        steps: Steps,
    ):
        self.local, self.loss, self.how, self.moving = local, loss, how, moving
        self.x, self.coupled, self.steps = x, coupled, steps
        self.net = local.train_net
        self.lr = how.lr[steps.order.to(how.lr.device)] if isinstance(how.lr, Tensor) else how.lr
        self.velocity: Tree = {}
        self.settings = (how.repeat, how.weight_decay, how.momentum, how.after)

    def velocity_of(self, stack: Tree) -> Tree:
        """Zero velocities, if there is momentum."""
        return tree.zeros_like(tree.pick(stack, self.moving)) if self.how.momentum else {}

    def run(self, stack: Tree, extra: tuple[Any, ...]) -> Tensor:
        """Train the stack in place; returns the summed loss per client."""
        total = torch.zeros_like(self.local.sizes)
        self.velocity = self.velocity_of(stack)
        for step in self.steps:
            self.step(step, stack, extra, total)
        return total

    def step(
        self,
        step: Step,
        stack: Tree,
        extra: tuple[Any, ...],
        total: Tensor,
        keep: Tensor | None = None,
    ) -> None:
        """One step; `keep` is 1 for the clients that take it, 0 for those that must not move."""
        for _ in range(self.how.repeat):
            part = take(stack, step.who)
            value, grads = self.local.value_and_grad(
                self.loss, self.net, part, self.moving, step, extra, self.x, self.coupled, keep
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

    def _descend(
        self,
        step: Step,
        part: Tree,
        names: list[str],
        delta: list[Tensor],
        keep: Tensor | None,
    ) -> None:
        moved = [part[n] for n in names]
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
        if keep is not None and (self.how.weight_decay or self.how.momentum):
            delta = [d * tree.column(keep, d) for d in delta]
        if not isinstance(self.lr, Tensor):
            torch._foreach_add_(moved, delta, alpha=-self.lr)
        elif self.lr.ndim == 0:
            torch._foreach_sub_(moved, torch._foreach_mul(delta, self.lr))
        else:
            size = self.lr[step.who]
            torch._foreach_sub_(moved, [d * tree.column(size, d) for d in delta])


class Squares:
    """Squared gradient norms of a stack, summed over batches or samples."""

    def __init__(self, local: StackedLocal, loss: Loss, moving: list[str], steps: Steps):
        self.local, self.loss, self.moving, self.steps = local, loss, moving, steps
        self.net = local.net
        self.coupled, self.x, self.settings = False, None, ()
        self.lr: float | Tensor = 0.0
        self.velocity: Tree = {}

    def velocity_of(self, stack: Tree) -> Tree:
        return {}

    def run(self, stack: Tree, extra: tuple[Any, ...]) -> Tensor:
        total = torch.zeros_like(self.local.sizes)
        for step in self.steps:
            self.step(step, stack, extra, total)
        return total

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
            self.loss, self.net, part, self.moving, step, extra, keep=keep
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


class StackedEngine(Engine):
    """All clients of a group in one kernel."""

    name = "stacked"

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.graphs = Graphs(self.data) if self.device.type == "cuda" else None

    def groups(self, ids: Sequence[int]) -> list[list[int]]:
        return [list(range(len(ids)))]

    def local(self, ids: list[int], round: int) -> StackedLocal:
        keys = [self.keys[i] for i in ids]
        local = StackedLocal(self.data, self.net, self.train_net, round, ids, keys)
        local.graphs = self.graphs
        return local

    @torch.no_grad()
    def evaluate(self, params: Tree, ids: Sequence[int], part: Part) -> tuple[Tensor, Tensor]:
        index = [self.data.parts[part][i] for i in ids]
        if all(v.stride(0) == 0 or len(v) == 1 for v in params.values()):
            return self._evaluate_shared(tree.client(params, 0), index)
        order = sorted(range(len(ids)), key=lambda k: -len(index[k]))
        stack = {n: v[torch.tensor(order, device=v.device)] for n, v in params.items()}
        correct = torch.zeros(len(ids), device=self.device, dtype=torch.float64)
        loss = torch.zeros_like(correct)
        for at in range(0, len(index[order[0]]), EVAL_BATCH):
            batch = [index[k][at : at + EVAL_BATCH] for k in order if len(index[k]) > at]
            k = len(batch)
            rows = nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=-1)
            rows = rows.to(self.device)
            given, real = rows.clamp_min(0), rows >= 0
            inputs, y = self.data.inputs(given), self.data.y[given]
            logits = torch.vmap(self.net)({n: v[:k] for n, v in stack.items()}, inputs)
            each = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
            correct[:k] += ((logits.argmax(-1) == y) & real).sum(1)
            loss[:k] += (each.reshape(y.shape) * real).sum(1)
        back = torch.argsort(torch.tensor(order))
        return correct.cpu()[back], loss.cpu()[back]

    def _evaluate_shared(self, params: Tree, index: list[Tensor]) -> tuple[Tensor, Tensor]:
        """One model for all: the clients' samples in large common batches."""
        everyone = torch.cat(index).to(self.device)
        hit, loss = [], []
        for at in everyone.split(8 * EVAL_BATCH):
            logits, y = self.net(params, self.data.inputs(at)), self.data.y[at]
            hit.append(logits.argmax(1) == y)
            loss.append(nn.functional.cross_entropy(logits, y, reduction="none").double())
        sizes = [len(i) for i in index]
        hits = torch.cat(hit).double().cpu().split(sizes)
        losses = torch.cat(loss).cpu().split(sizes)
        return torch.stack([h.sum() for h in hits]), torch.stack([v.sum() for v in losses])


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


def reorder(extra: Any, order: Tensor) -> Any:
    """An extra argument with its clients in stack order."""
    if isinstance(extra, Rows):
        return extra
    if isinstance(extra, dict):
        return {n: v[order] for n, v in extra.items()}
    return extra[order]


def cut(extra: Any, step: Step) -> Any:
    """The part of an extra argument that a step needs."""
    if isinstance(extra, Rows):
        return extra.values[step.at]
    if isinstance(extra, dict):
        return take(extra, step.who)
    return extra[step.who]
