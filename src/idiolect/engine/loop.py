"""The reference engine: one client at a time in plain PyTorch, slow and simple. The stacked engine
must give its numbers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.batches import BatchPlan, SgdSettings
from idiolect.core.local import Coupled, Loss, Objective, Trained
from idiolect.core.net import Net
from idiolect.core.optimizer import BETA_1, BETA_2, CLIP_EPSILON, EPSILON
from idiolect.core.record import Rows
from idiolect.core.tree import Tree
from idiolect.engine.engine import Engine
from idiolect.engine.samples import Part
from idiolect.engine.samples_local import EVAL_BATCH, SamplesLocal, dropout_seed
from idiolect.engine.threads import Nets


class LoopLocal(SamplesLocal):
    """One client: every tree has K = 1."""

    def _sgd(
        self, goal: Objective, params: Tree, how: SgdSettings, start: Tensor, memory: Tree
    ) -> Trained:
        batches = self._batches(how, int(start[0]), self.train_net.couples)
        w = {n: v[0].detach().clone() for n, v in params.items()}
        lr = float(how.lr[0]) if isinstance(how.lr, Tensor) else how.lr
        memory = {n: v[0] for n, v in memory.items()}
        total, seen = torch.zeros((), device=self.device, dtype=self.dtype), 0
        with dropout_seed(how.purpose, self):
            for number, batch in enumerate(batches):
                at = batch.to(self.device)
                changed = None
                if self.augment is not None and goal.x is None:
                    draw = self._draw(how.purpose, 0, number)
                    changed = self.augment(self.samples.inputs(self.index[at]), draw)
                for _ in range(how.repeat):
                    leaf = {n: w[n].requires_grad_(n in goal.moving) for n in w}
                    out = self._values(goal, self.train_net, leaf, at, changed)
                    value = _mean(out, goal.coupled)
                    wrt = [leaf[n] for n in goal.moving]
                    grads = torch.autograd.grad(value, wrt, allow_unused=True)
                    w = {n: v.detach() for n, v in w.items()}
                    known = zip(goal.moving, grads, strict=True)
                    found = {n: g for n, g in known if g is not None}
                    w |= _descended(w, _pulled(goal, w, found), memory, how, lr)
                    total = total + value.detach() * len(batch)
                    seen += len(batch)
                if how.after is not None:
                    w |= how.after(w, *(_mine(e, at) for e in goal.extra))
        self.samples_seen += seen
        self.steps_taken += how.repeat * len(batches)
        steps = torch.full_like(self.sizes, how.repeat * len(batches))
        params = {n: v.unsqueeze(0) for n, v in w.items()}
        kept = {n: v.unsqueeze(0) for n, v in memory.items()} if how.keep else {}
        return Trained(params, (total / max(seen, 1)).reshape(1), steps, kept)

    def _grad(self, goal: Objective, params: Tree, training: bool) -> tuple[Tree, Tensor, Tree]:
        w = {n: v[0].detach().clone() for n, v in params.items()}
        leaf = {n: v.requires_grad_(n in goal.moving) for n, v in w.items()}
        at = torch.arange(len(self.y_host[0]), device=self.device)
        net = self.train_net if training else self.net
        with dropout_seed("grad", self):
            value = self._values(goal, net, leaf, at).mean()
            wrt = [leaf[n] for n in goal.moving]
            grads = torch.autograd.grad(value, wrt, allow_unused=True, materialize_grads=True)
        self.samples_seen += len(at)
        self.steps_taken += 1
        grad = {n: g.unsqueeze(0) for n, g in zip(goal.moving, grads, strict=True)}
        return grad, value.detach().reshape(1), {n: v.detach().unsqueeze(0) for n, v in w.items()}

    def _squared_grad(
        self, goal: Objective, params: Tree, plan: BatchPlan, per_sample: bool
    ) -> tuple[Tensor, Tensor]:
        batches = self._batches(replace(plan, batch_size=1) if per_sample else plan)
        w = {n: v[0].detach().clone() for n, v in params.items()}
        leaf = {n: v.requires_grad_(n in goal.moving) for n, v in w.items()}
        weights = [v for v in leaf.values() if v.requires_grad]
        total = torch.zeros((), device=self.device, dtype=self.dtype)
        for batch in batches:
            at = batch.to(self.device)
            value = self._values(goal, self.net, leaf, at).mean()
            grads = torch.autograd.grad(value, weights, allow_unused=True)
            total = total + sum(g.square().sum() for g in grads if g is not None)
        count = torch.tensor([len(batches)], device=self.device, dtype=self.dtype)
        return total.reshape(1), count

    @torch.no_grad()
    def forward(self, fn: Loss, params: Tree, *, extra: Sequence[Any] = ()) -> Rows:
        w, goal = tree.client(params, 0), Objective(fn, [], tuple(extra))
        everyone = torch.arange(len(self.y_host[0]), device=self.device)
        out = [self._values(goal, self.net, w, at) for at in everyone.split(EVAL_BATCH)]
        return Rows(torch.cat(out))

    def _batches(self, plan: BatchPlan, start: int = 0, merge: bool = False) -> list[Tensor]:
        rows, sizes = plan.table(self.y_host[0], *self.keys[0], self.round, start, merge)
        return [torch.tensor(r[:s]) for r, s in zip(rows, sizes, strict=True)]

    def _values(
        self, goal: Objective, net: Net, w: Tree, at: Tensor, changed: Tensor | None = None
    ) -> Tensor:
        """What the loss returns for the client's samples `at`, as they are or `changed`."""
        given, inputs = self.index[at], changed
        if inputs is None:
            inputs = self.samples.inputs(given) if goal.x is None else goal.x.values[at]
        extra = (_mine(e, at) for e in goal.extra)
        return goal.loss(net, w, inputs, self.samples.y[given], *extra)


class LoopEngine(Engine):
    """Clients one after the other."""

    name = "loop"

    def groups(self, ids: Sequence[int]) -> list[list[int]]:
        return [[k] for k in range(len(ids))]

    def local(self, ids: list[int], round: int, nets: Nets | None = None) -> LoopLocal:
        keys = [self.keys[i] for i in ids]
        local = LoopLocal(self.samples, *(nets or self.nets), round, ids, keys)
        local.augment = self.augment
        return local

    @torch.no_grad()
    def _evaluate_here(self, params: Tree, ids: Sequence[int], part: Part) -> tuple[Tensor, Tensor]:
        correct, loss = self._no_scores(len(ids)), torch.zeros(len(ids), dtype=torch.float64)
        if not self.task.has_classes or correct.ndim > 1:
            correct = correct.double()
        for k, i in enumerate(ids):
            w = tree.client(params, k)
            for at in self.samples.in_pieces(self.samples.parts[part][i], EVAL_BATCH):
                logits, y = self.net(w, self.samples.inputs(at)), self.samples.y[at]
                found = self.task.metric.statistics(logits, y).sum(0).cpu()
                correct[k] += found if correct.ndim > 1 else found[0]
                loss[k] += self.task.test_loss(logits, y, "sum").cpu()
        return correct, loss


def _pulled(goal: Objective, w: Tree, grads: Tree) -> Tree:
    """The gradients with those of `strength / 2 |w - anchor|^2`."""
    if not goal.pull:
        return grads
    anchor, strength = tree.client(goal.pull[0], 0), goal.pull[1][0]
    pulled = [n for n in goal.moving if n in anchor]
    return grads | {n: grads.get(n, 0) + strength * (w[n] - anchor[n]) for n in pulled}


def _descended(w: Tree, grads: Tree, memory: Tree, how: SgdSettings, lr: float) -> Tree:
    """The leaves after one step against their gradients; `memory` is the optimizer's."""
    if how.clip:
        length = torch.stack([g.square().sum() for g in grads.values()]).sum().sqrt()
        factor = (how.clip / (length + CLIP_EPSILON)).clamp_max(1)
        grads = {n: g * factor for n, g in grads.items()}
    if how.optimizer != "sgd":
        none = torch.zeros_like(tree.any_leaf(grads)).sum()
        memory["taken"] = memory.get("taken", none) + 1
    out = {}
    for n, g in grads.items():
        if how.optimizer != "adamw":
            g = g + how.weight_decay * w[n]
        if how.optimizer == "sgd" and how.momentum:
            g = memory[f"velocity/{n}"] = how.momentum * memory.get(f"velocity/{n}", 0) + g
        elif how.optimizer != "sgd":
            g = _adam(n, g, memory)
        if how.optimizer == "adamw":
            g = g + how.weight_decay * w[n]
        out[n] = w[n] - lr * g
    return out


def _adam(n: str, g: Tensor, memory: Tree) -> Tensor:
    first = memory[f"first/{n}"] = BETA_1 * memory.get(f"first/{n}", 0) + (1 - BETA_1) * g
    second = memory[f"second/{n}"] = BETA_2 * memory.get(f"second/{n}", 0) + (1 - BETA_2) * g * g
    taken = memory["taken"]
    size = (second / (1 - BETA_2**taken)).sqrt() + EPSILON
    return first / (1 - BETA_1**taken) / size


def _mine(extra: Any, at: Tensor) -> Any:
    """The one client's part of an extra argument."""
    if isinstance(extra, Rows):
        return extra.values[at]
    return tree.client(extra, 0) if isinstance(extra, dict) else extra[0]


def _mean(out: Tensor, coupled: Coupled) -> Tensor:
    if out.ndim != (0 if coupled else 1):
        raise TypeError(
            "a loss returns one value per sample, or a scalar when passed with coupled=True; "
            f"got shape {tuple(out.shape)} with coupled={coupled}"
        )
    return out if coupled else out.mean()
