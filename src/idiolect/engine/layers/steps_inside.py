"""Steps of SGD that layers take themselves, inside the computation that would give the gradient."""

from collections.abc import Callable, Collection
from contextvars import ContextVar
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from idiolect.core.tree import Tree
from idiolect.engine.layers.lanes import Lanes
from idiolect.engine.layers.stack_function import fused, fused_steps, in_transform


class StepsInside:
    """Inside `with`, a layer may hand over how to subtract what would be the gradient of one of
    these weights, instead of the gradient; `take` does all that was handed over. A gradient that is
    never written down costs no pass over memory."""

    def __init__(self, weights: Tree):
        self._leaf = {w.untyped_storage().data_ptr(): n for n, w in weights.items()}
        self._steps: list[tuple[int, Callable[[], Any]]] = []
        self._lanes = Lanes()
        self._lane: dict[str, int] = {}  # of the weights that have such a step

    @property
    def names(self) -> Collection[str]:
        """Of the weights that have such a step."""
        return self._lane.keys()

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

    def add(self, w: Tensor, step: Callable[[], Any]) -> None:
        self._steps.append((self._lane_of(w), step))

    def add_found(
        self, w: Tensor, step: Callable[[Any], Any], find: Callable[..., Any], *given: Tensor
    ) -> None:
        """A step by what `find(*given)` returns. That is computed now, beside the backward pass."""
        lane = self._lane_of(w)
        self._steps.append((lane, partial(step, self._lanes.run(lane, find, *given))))

    def _lane_of(self, w: Tensor) -> int:
        """One for all steps of the same weights, which must not cross."""
        name = self._leaf[w.untyped_storage().data_ptr()]
        return self._lane.setdefault(name, len(self._lane))

    def take(self) -> None:
        for lane, step in self._steps:
            self._lanes.run(lane, step)
        self._lanes.join()


_current: ContextVar[StepsInside | None] = ContextVar("steps_inside", default=None)


def of(*weights: Tensor | None) -> tuple[StepsInside | None, ...]:
    """Who takes the steps of each of these weights; asked when a layer computes its outputs."""
    found = _current.get()
    if found is None:
        return (None,) * len(weights)
    return tuple(found if w is not None and found.takes(w) else None for w in weights)


def wanted(inside: StepsInside | None) -> bool:
    """In a backward pass: whether a step will do instead of the gradient. It will not if the
    gradient is to be differentiated again."""
    return inside is not None and not torch.is_grad_enabled()


def takes_sum(
    inside: StepsInside | None, bias: Tensor | None, g: Tensor, cut: Tensor | None = None
) -> bool:
    """Whether the gradient of a bias, the sum of `g [K, B, O, ...]` over all but clients and
    channels, was handed over. What `cut` has above 3 does not count."""
    if bias is None or inside is None or not (pays(g) and wanted(inside)):
        return False
    ours = g.dtype == torch.float32 and fused() is not None and len(g) < 2**16  # as in a grid
    if ours and g.movedim(2, -1).is_contiguous():
        rows = [one.movedim(2, -1).flatten(1, -2) for one in (g, cut) if one is not None]
        step = partial(fused_steps().take_away, bias.detach())
        inside.add_found(bias, step, fused_steps().sums, *rows)
        return True
    g = g if cut is None else g.masked_fill(cut > 3, 0)
    axes = [axis for axis in range(1, g.ndim) if axis != 2]
    inside.add_found(bias, bias.detach().sub_, partial(torch.sum, dim=axes), g)
    return True


def pays(g: Tensor) -> bool:
    """On a GPU nobody needs to wait for such a sum; on a CPU it would only be one call more."""
    return g.is_cuda
