"""All clients of the round in one kernel.

Each leaf of the tree is `[K, ...]`; the loss of one client is made K wide by `vmap`, and because
client k's loss depends on client k's row alone, the gradient of the sum is every client's own
gradient. Clients are sorted by number of steps and the stack shrinks as they finish. A last partial
batch is filled up with weight-zero samples, except where samples of a batch depend on one another
(BatchNorm, coupled losses): there clients are grouped by exact batch size instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from idiolect import tree
from idiolect.engine.base import DataLocal, Engine, Part
from idiolect.engine.conv import unfold_convolutions
from idiolect.engine.loop import dropout_seed
from idiolect.local import Order, Plan, Rows, Sgd
from idiolect.method import Loss
from idiolect.net import Net
from idiolect.tree import Tree

EVAL_BATCH = 512
FILL = 0.7  # full batches share a stack when the smaller is at least this share of the larger


@dataclass(frozen=True)
class Step:
    """One step of some clients: rows `who` of the stack, sample positions, and their weights."""

    who: slice | Tensor
    at: Tensor  # [k, B] positions among the clients' samples
    weight: Tensor | None  # [k, B], rows sum to 1; None = plain mean
    size: Tensor  # [k] real samples


class StackedLocal(DataLocal):
    """K clients at once."""

    def _sgd(
        self,
        loss: Loss,
        params: Tree,
        how: Sgd,
        moving: list[str],
        extra: tuple[Any, ...],
        x: Rows | None,
        coupled: bool,
        start: Tensor | None,
    ) -> Tree:
        exact = coupled or self.train_net.couples
        begin = [0] * len(self.ids) if start is None else [int(s) for s in start.tolist()]
        batches = [
            how.batches(y, self.seed, i, self.round, s, self.train_net.couples)
            for y, i, s in zip(self.y_host, self.ids, begin, strict=True)
        ]
        order = _by_length(batches)
        stack = {n: v[order.to(v.device)].contiguous() for n, v in params.items()}
        extra = tuple(_reorder(e, order) for e in extra)
        lr = how.lr[order.to(how.lr.device)] if isinstance(how.lr, Tensor) else how.lr
        velocity = {n: torch.zeros_like(stack[n]) for n in moving} if how.momentum else {}
        total, seen = torch.zeros_like(self.sizes), torch.zeros_like(self.sizes)
        with dropout_seed(self.device, self.seed, how.purpose, self.ids[0], self.round):
            for step in self._steps([batches[k] for k in order.tolist()], order, exact):
                inputs, y = self._inputs(step, x)
                for _ in range(how.repeat):
                    part = _take(stack, step.who)
                    value, grads = self._value_and_grad(
                        loss, self.train_net, part, moving, inputs, y, step, extra, coupled
                    )
                    names = [n for n, g in zip(moving, grads, strict=True) if g is not None]
                    moved = [part[n] for n in names]
                    delta = [g for g in grads if g is not None]
                    if how.weight_decay:
                        torch._foreach_add_(delta, moved, alpha=how.weight_decay)
                    if how.momentum:
                        speed = list(_take({n: velocity[n] for n in names}, step.who).values())
                        torch._foreach_mul_(speed, how.momentum)
                        torch._foreach_add_(speed, delta)
                        _put(velocity, step.who, dict(zip(names, speed, strict=True)))
                        delta = speed
                    if isinstance(lr, Tensor):
                        size = lr[step.who]
                        delta = [d * tree.column(size, d) for d in delta]
                    torch._foreach_add_(moved, delta, alpha=-1 if isinstance(lr, Tensor) else -lr)
                    _put(stack, step.who, part)
                    total[step.who] += value * step.size
                    seen[step.who] += step.size
        back = torch.argsort(order)
        self.samples_seen += how.repeat * sum(len(b) for c in batches for b in c)
        self.losses[how.purpose] = (total / seen.clamp_min(1))[back.to(total.device)]
        return {n: v[back.to(v.device)] for n, v in stack.items()}

    def grad(
        self,
        loss: Loss,
        params: Tree,
        *,
        train: Sequence[str] | None = None,
        extra: Sequence[Any] = (),
        training: bool = False,
    ) -> tuple[Tree, Tensor, Tree]:
        moving = [n for n in (self.net.weights if train is None else train) if n in params]
        net = self.train_net if training else self.net
        plan = Plan("full" if training else EVAL_BATCH, order="fixed")
        stack, total = tree.clone(params), torch.zeros_like(self.sizes)
        grad = {n: torch.zeros_like(stack[n]) for n in moving}
        with dropout_seed(self.device, self.seed, "grad", self.ids[0], self.round):
            for step, order in self._pass(plan, net.couples):
                part = _take(stack, order[step.who])
                inputs, y = self._inputs(step, None)
                mine = tuple(_reorder(e, order) for e in extra)
                value, grads = self._value_and_grad(
                    loss, net, part, moving, inputs, y, step, mine, False
                )
                share = step.size / self.sizes[order[step.who]]
                for n, g in zip(moving, grads, strict=True):
                    if g is not None:
                        grad[n][order[step.who]] += g * tree.column(share, g)
                total[order[step.who]] += value * share
                if training:
                    _put(stack, order[step.who], part)
        self.samples_seen += int(self.sizes.sum())
        return grad, total, stack

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
        total, count = torch.zeros_like(self.sizes), torch.zeros_like(self.sizes)
        plan = Plan(
            16 if per_sample else batch_size, order=order, drop_last=drop_last, purpose="trace"
        )
        moving = [n for n in self.net.weights if n in params]
        for step, by in self._pass(plan, False):
            who = by[step.who]
            part, mine = _take(params, who), tuple(_reorder(e, by) for e in extra)
            inputs, y = self._inputs(step, None)
            if per_sample:
                squares = self._sample_squares(loss, part, moving, inputs, y, step, mine)
                real = torch.ones_like(squares) if step.weight is None else step.weight > 0
                total[who] += (squares * real).sum(1)
                count[who] += step.size
            else:
                _, grads = self._value_and_grad(
                    loss, self.net, part, moving, inputs, y, step, mine, False
                )
                norms = [g.reshape(len(g), -1).square().sum(1) for g in grads if g is not None]
                total[who] += torch.stack(norms).sum(0)
                count[who] += 1
        return total, count

    @torch.no_grad()
    def forward(self, fn: Loss, params: Tree, *, extra: Sequence[Any] = ()) -> Rows:
        rows: Tensor | None = None
        for step, order in self._pass(Plan(EVAL_BATCH, order="fixed"), False):
            who = order[step.who]
            inputs, y = self._inputs(step, None)
            mine = tuple(_reorder(e, order) for e in extra)
            out = self._wide(fn, self.net, _take(params, who), inputs, y, step, mine)
            if rows is None:
                rows = out.new_zeros(self.offsets[-1], *out.shape[2:])
            if step.weight is None:
                rows[step.at.reshape(-1)] = out.flatten(0, 1)
            else:
                real = step.weight > 0
                rows[step.at[real]] = out[real]
        assert rows is not None
        return Rows(rows)

    # --- steps ---

    def _pass(self, plan: Plan, exact: bool) -> Iterator[tuple[Step, Tensor]]:
        """One pass over the data; `order[step.who]` are the clients of a step."""
        batches = [
            plan.batches(y, self.seed, i, self.round)
            for y, i in zip(self.y_host, self.ids, strict=True)
        ]
        order = _by_length(batches).to(self.device)
        for step in self._steps([batches[k] for k in order.tolist()], order, exact):
            yield step, order

    def _steps(self, batches: list[list[np.ndarray]], order: Tensor, exact: bool) -> Iterator[Step]:
        """Cut the clients' batches (sorted, longest first) into steps of the shrinking stack."""
        first = [self.offsets[k] for k in order.tolist()]
        for t in range(len(batches[0])):
            active = [b[t] for b in batches if len(b) > t]
            sizes = np.array([len(b) for b in active])
            for group in _groups(sizes, exact):
                yield self._step(group, [active[k] + first[k] for k in group], len(active))

    def _step(self, group: np.ndarray, batches: list[np.ndarray], active: int) -> Step:
        sizes = np.array([len(b) for b in batches])
        width = int(sizes.max())
        at = np.stack([np.pad(b, (0, width - len(b)), constant_values=b[0]) for b in batches])
        weight = None
        if (sizes != width).any():
            mask = np.arange(width) < sizes[:, None]
            weight = torch.as_tensor(mask / sizes[:, None], dtype=self.dtype, device=self.device)
        contiguous = len(group) == group[-1] - group[0] + 1
        who: slice | Tensor = slice(int(group[0]), int(group[-1]) + 1)
        if not contiguous:
            who = torch.as_tensor(group, device=self.device)
        size = torch.as_tensor(sizes, dtype=self.dtype, device=self.device)
        return Step(who, torch.as_tensor(at, device=self.device), weight, size)

    def _inputs(self, step: Step, x: Rows | None) -> tuple[Tensor, Tensor]:
        given = self.index[step.at]
        inputs = self.data.inputs(given) if x is None else x.values[step.at]
        return inputs, self.data.y[given]

    # --- K clients wide ---

    def _wide(
        self,
        fn: Loss,
        net: Net,
        part: Tree,
        inputs: Tensor,
        y: Tensor,
        step: Step,
        extra: tuple[Any, ...],
    ) -> Tensor:
        def one(p: Tree, x: Tensor, y: Tensor, *more: Any) -> Tensor:
            return fn(net, p, x, y, *more)

        more = tuple(_slice(e, step) for e in extra)
        return torch.vmap(one, randomness="different")(part, inputs, y, *more)

    def _value_and_grad(
        self,
        loss: Loss,
        net: Net,
        part: Tree,
        moving: list[str],
        inputs: Tensor,
        y: Tensor,
        step: Step,
        extra: tuple[Any, ...],
        coupled: bool,
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        leaf = {n: v.detach().requires_grad_(n in moving) for n, v in part.items()}
        out = self._wide(loss, net, leaf, inputs, y, step, extra)
        if coupled != (out.ndim == 1):
            raise TypeError(
                "a loss returns one value per sample, or a scalar when passed with coupled=True; "
                f"got shape {tuple(out.shape[1:])} with coupled={coupled}"
            )
        value = out
        if not coupled:
            value = out.mean(1) if step.weight is None else (out * step.weight).sum(1)
        grads = torch.autograd.grad(value.sum(), [leaf[n] for n in moving], allow_unused=True)
        return value.detach(), grads

    def _sample_squares(
        self,
        loss: Loss,
        part: Tree,
        moving: list[str],
        inputs: Tensor,
        y: Tensor,
        step: Step,
        extra: tuple[Any, ...],
    ) -> Tensor:
        """Squared gradient norm of every sample `[k, B]`."""

        def square(p: Tree, x: Tensor, y: Tensor, *more: Any) -> Tensor:
            fixed = {n: v for n, v in p.items() if n not in moving}

            def value(w: Tree) -> Tensor:
                return loss(self.net, w | fixed, x[None], y[None], *more).mean()

            grads = torch.func.grad(value)({n: p[n] for n in moving})
            return torch.stack([g.square().sum() for g in grads.values()]).sum()

        more = tuple(_slice(e, step) for e in extra)
        per_client = tuple(0 if isinstance(e, Rows) else None for e in extra)
        over_samples = torch.vmap(square, in_dims=(None, 0, 0, *per_client))
        return torch.vmap(over_samples)(part, inputs, y, *more).detach()


class StackedEngine(Engine):
    """All clients of a group in one kernel."""

    name = "stacked"

    def _adapt(self, module: nn.Module) -> nn.Module:
        return unfold_convolutions(module)

    def groups(self, ids: Sequence[int]) -> list[list[int]]:
        return [list(range(len(ids)))]

    def local(self, ids: list[int], round: int) -> StackedLocal:
        return StackedLocal(self.data, self.net, self.train_net, self.seed, round, ids)

    @torch.no_grad()
    def evaluate(self, params: Tree, ids: Sequence[int], part: Part) -> tuple[Tensor, Tensor]:
        index = [self.data.parts[part][i] for i in ids]
        if all(v.stride(0) == 0 or len(v) == 1 for v in params.values()):
            return self._evaluate_shared(tree.client(params, 0), index)
        order = sorted(range(len(ids)), key=lambda k: -len(index[k]))
        stack = {n: v[torch.tensor(order, device=v.device)] for n, v in params.items()}
        correct = torch.zeros(len(ids), device=self.device, dtype=torch.float64)
        loss = torch.zeros_like(correct)
        longest = len(index[order[0]])
        for at in range(0, longest, EVAL_BATCH):
            cut = [index[k][at : at + EVAL_BATCH] for k in order if len(index[k]) > at]
            k, width = len(cut), max(len(c) for c in cut)
            padded = torch.stack([nn.functional.pad(c, (0, width - len(c)), value=-1) for c in cut])
            padded = padded.to(self.device)
            given, real = padded.clamp_min(0), padded >= 0
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


def _by_length(batches: list[list[np.ndarray]]) -> Tensor:
    """Clients with most steps first, then larger batches first."""
    return torch.tensor(
        sorted(range(len(batches)), key=lambda k: (-len(batches[k]), -len(batches[k][0])))
    )


def _groups(sizes: np.ndarray, exact: bool) -> list[np.ndarray]:
    """Clients that share a step: of equal size, or similar where filling is allowed."""
    if exact:
        return [np.flatnonzero(sizes == s) for s in np.unique(sizes)[::-1]]
    if sizes.min() >= FILL * sizes.max() or sizes.max() <= EVAL_BATCH:
        return [np.arange(len(sizes))]
    groups, rest = [], np.argsort(-sizes, kind="stable")
    while len(rest):
        near = sizes[rest] >= FILL * sizes[rest[0]]
        groups.append(np.sort(rest[near]))
        rest = rest[~near]
    return groups


def _take(stack: Tree, who: slice | Tensor) -> Tree:
    return {n: v[who] for n, v in stack.items()}


def _put(stack: Tree, who: slice | Tensor, part: Tree) -> None:
    """Write rows back; a slice is a view and is there already."""
    if isinstance(who, Tensor):
        for n, v in part.items():
            stack[n][who] = v


def _reorder(extra: Any, order: Tensor) -> Any:
    if isinstance(extra, Rows):
        return extra
    if isinstance(extra, dict):
        return {n: v[order.to(v.device)] for n, v in extra.items()}
    return extra[order.to(extra.device)]


def _slice(extra: Any, step: Step) -> Any:
    if isinstance(extra, Rows):
        return extra.values[step.at]
    if isinstance(extra, dict):
        return {n: v[step.who] for n, v in extra.items()}
    return extra[step.who]
