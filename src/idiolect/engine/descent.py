"""How the gradients of a stack become steps: clipping, weight decay, momentum, Adam, the learning
rate. All in place, so that a captured step can do it; clients that take no step stay as they are.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from idiolect.core import record, tree
from idiolect.core.optimizer import BETA_1, BETA_2, CLIP_EPSILON, EPSILON, Optimizer
from idiolect.core.tree import Tree
from idiolect.engine.steps import Step

Pull = tuple[Tree, Tensor]  # the leaves that others are pulled to, and how strongly [k]
NO_PULL: Pull = ({}, torch.zeros(()))


@dataclass(frozen=True)
class Descent:
    """The settings of local SGD that say how a gradient becomes a step."""

    optimizer: Optimizer = "sgd"
    weight_decay: float = 0.0
    momentum: float = 0.0
    clip: float = 0.0

    @property
    def adaptive(self) -> bool:
        return self.optimizer != "sgd"

    @property
    def scales(self) -> bool:
        """The loss may be multiplied by the learning rate instead of its gradient: what else
        there is to a step is a multiple of the weights."""
        return not (self.adaptive or self.momentum or self.clip)

    def memory(self, moving: Tree) -> Tree:
        """What it remembers of these leaves, before the first step."""
        if self.adaptive:
            parts = {f"{part}/{n}": torch.zeros_like(v) for part in ("first", "second")
                     for n, v in moving.items()}  # fmt: skip
            like = tree.any_leaf(moving)
            return parts | {"taken": like.new_zeros(len(like))}
        return {f"velocity/{n}": torch.zeros_like(v) for n, v in moving.items() if self.momentum}

    def shrink(
        self, part: Tree, names: Collection[str], length: float | Tensor, pull: Pull
    ) -> None:
        """The share of weight decay and pull in a step of `length`, one for all or `[k]`, in
        place."""
        anchor, strength = pull
        left = 1 - length * self.weight_decay
        for n in names:
            w, towards = part[n], anchor.get(n)
            if towards is None:
                if self.weight_decay:
                    w.mul_(tree.column(left, w) if isinstance(left, Tensor) else left)
                continue
            rate = strength + self.weight_decay
            if self.weight_decay:
                towards = towards * tree.column(strength / rate, w)
            w.lerp_(towards, tree.column(length * rate, w))

    def descend(
        self, step: Step, lr: float | Tensor, memory: Tree, part: Tree, grads: Tree, pull: Pull
    ) -> None:
        """Move the clients of the step, whose rows `part` holds, against their gradients."""
        anchor, strength = pull
        for n in anchor:
            away = tree.column(strength, part[n]) * (part[n] - anchor[n])
            grads[n] = grads[n] + away if n in grads else away
        moved, delta = [part[n] for n in grads], list(grads.values())
        if self.clip:
            delta = self._clipped(delta)
        if self.weight_decay and self.optimizer != "adamw":
            torch._foreach_add_(delta, moved, alpha=self.weight_decay)
        if memory:
            kinds = ("first", "second") if self.adaptive else ("velocity",)
            wanted = [*(f"{kind}/{n}" for kind in kinds for n in grads)]
            wanted += ["taken"] if self.adaptive else []
            rows = record.select({n: memory[n] for n in wanted}, step.who)
            change = self._adapted if self.adaptive else self._accelerated
            delta = change(rows, list(grads), delta, step.keep)
            record.put(memory, step.who, rows)
        if self.weight_decay and self.optimizer == "adamw":
            delta = [d + self.weight_decay * w for d, w in zip(delta, moved, strict=True)]
        if step.keep is not None:
            delta = [d * tree.column(step.keep, d) for d in delta]
        if not isinstance(lr, Tensor):
            torch._foreach_add_(moved, delta, alpha=-lr)
        elif lr.ndim == 0:
            torch._foreach_sub_(moved, torch._foreach_mul(delta, lr))
        else:
            torch._foreach_sub_(moved, [d * tree.column(lr, d) for d in delta])

    def _clipped(self, grads: list[Tensor]) -> list[Tensor]:
        """Every client's gradient, no longer than `clip` over all leaves together."""
        squares = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in grads])
        factor = (self.clip / (squares.sum(0).sqrt() + CLIP_EPSILON)).clamp_max(1)
        return [g * tree.column(factor, g) for g in grads]

    def _accelerated(
        self, rows: Tree, names: list[str], delta: list[Tensor], keep: Tensor | None
    ) -> list[Tensor]:
        """The new velocities, also written into `rows`."""
        speed = [rows[f"velocity/{n}"] for n in names]
        new = [v * self.momentum + d for v, d in zip(speed, delta, strict=True)]
        if keep is not None:
            pairs = zip(new, speed, strict=True)
            new = [torch.where(tree.column(keep.bool(), a), a, b) for a, b in pairs]
        torch._foreach_copy_(speed, new)
        return new

    def _adapted(
        self, rows: Tree, names: list[str], delta: list[Tensor], keep: Tensor | None
    ) -> list[Tensor]:
        """Adam's directions; the means they come from are written into `rows`."""
        taken = rows["taken"]
        taken += 1 if keep is None else keep
        done = taken.clamp_min(1)  # a client that took no step yet divides by no zero
        unbias = 1 / (1 - BETA_1**done), (1 / (1 - BETA_2**done)).sqrt()
        out = []
        for n, g in zip(names, delta, strict=True):
            first, second = rows[f"first/{n}"], rows[f"second/{n}"]
            new = first * BETA_1 + g * (1 - BETA_1), second * BETA_2 + g * g * (1 - BETA_2)
            if keep is not None:
                on = tree.column(keep.bool(), g)
                new = torch.where(on, new[0], first), torch.where(on, new[1], second)
            first.copy_(new[0])
            second.copy_(new[1])
            size = second.sqrt() * tree.column(unbias[1], g) + EPSILON
            out.append(first * tree.column(unbias[0], g) / size)
        return out
