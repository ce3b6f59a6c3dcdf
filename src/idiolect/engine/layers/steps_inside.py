"""Steps of SGD that layers take themselves, inside the computation that would give the gradient."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Self

import torch
from torch import Tensor

from idiolect.core.tree import Tree
from idiolect.engine.layers.stack_function import in_transform


class StepsInside:
    """Inside `with`, a layer may hand over how to subtract what would be the gradient of one of
    these weights, instead of the gradient; `take` does all that was handed over. A gradient that is
    never written down costs no pass over memory."""

    def __init__(self, weights: Tree):
        self._leaf = {w.untyped_storage().data_ptr(): n for n, w in weights.items()}
        self._steps: list[Callable[[], None]] = []
        self.names: set[str] = set()  # of the weights that have such a step

    def __enter__(self) -> Self:
        self._before = _current.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._before)

    def takes(self, w: Tensor) -> bool:
        """One of the weights itself, not something computed from them."""
        if in_transform() or not w.is_contiguous():
            return False
        return w.untyped_storage().data_ptr() in self._leaf

    def add(self, w: Tensor, step: Callable[[], None]) -> None:
        self.names.add(self._leaf[w.untyped_storage().data_ptr()])
        self._steps.append(step)

    def take(self) -> None:
        for step in self._steps:
            step()


_current: ContextVar[StepsInside | None] = ContextVar("steps_inside", default=None)


def of(w: Tensor) -> StepsInside | None:
    """Who takes the steps of these weights; asked when a layer computes its outputs."""
    found = _current.get()
    return found if found is not None and found.takes(w) else None


def wanted(inside: StepsInside | None) -> bool:
    """In a backward pass: whether a step will do instead of the gradient. It will not if the
    gradient is to be differentiated again."""
    return inside is not None and not torch.is_grad_enabled()
