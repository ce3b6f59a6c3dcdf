"""What the parts of a Federation may be: values checked, and told in one line."""

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from idiolect.core.task import LearningTask
from idiolect.core.text import shortened
from idiolect.data.client_arrays import PARTS
from idiolect.data.limits import LARGEST_CLASSES
from idiolect.errors import UserError

if TYPE_CHECKING:
    from idiolect.data.federation import Federation


def told(federation: "Federation") -> str:
    """A federation in one line: its samples are many."""
    counts = [f"{int(federation.sizes(part).sum())} {part}" for part in PARTS]
    task = federation.task
    has = "classes" if task.has_classes or task.per_step else "targets"
    return (
        f"Federation({federation.n_clients} clients, {', '.join(counts)} samples of shape "
        f"{list(federation.shape)}, {task.name}, {federation.classes} {has})"
    )


def whole_number(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        got = shortened(repr(value), 60)
        raise UserError(f"{name} must be a whole number, got {got}") from None


def per_channel(
    name: str, value: Sequence[float] | float | None, channels: int
) -> tuple[float, ...] | None:
    """One value per channel; a single value is for every channel."""
    if value is None:
        return None
    try:
        values = np.atleast_1d(np.asarray(value, dtype=np.float64)).tolist()
        if any(isinstance(one, list) for one in values):
            raise ValueError
    except (TypeError, ValueError, RuntimeError):
        got = shortened(repr(value), 60)
        raise UserError(f"{name} must be a number or one per channel, got {got}") from None
    if len(values) not in (1, channels):
        raise UserError(f"{name} has {len(values)} values but samples have {channels} channels")
    if not np.isfinite(values).all():
        raise UserError(f"{name} must be finite, got {tuple(values)}")
    return tuple(values) * (channels if len(values) == 1 else 1)


def finite_rows(x: Tensor) -> Tensor:
    """[M], whether a sample has neither NaN nor infinite values."""
    if not x.is_floating_point():
        return torch.ones(len(x), dtype=torch.bool)
    return by_blocks(len(x), lambda rows: torch.isfinite(x[rows]))


def by_blocks(rows: int, sound: Callable[[slice], Tensor]) -> Tensor:
    """[M], whether all values of a sample are sound; in blocks, so that a memory-mapped x is not
    doubled in memory."""
    starts = range(0, rows, 8192)
    blocks = [sound(slice(i, i + 8192)).flatten(1).all(1) for i in starts]
    return torch.cat(blocks) if blocks else torch.ones(0, dtype=torch.bool)


def row_numbers(part: str, value: Any) -> tuple[Tensor, ...]:
    try:
        return tuple(torch.as_tensor(rows) for rows in value)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"{part} must be a list with the row numbers of every client") from None


def listed(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise UserError(f"{name} must be a list, got {shortened(repr(value), 60)}")
    return tuple(value)


def counted(y: Tensor, task: LearningTask) -> int:
    """The largest label plus one; where samples have no class, the targets of one."""
    if y.ndim > 1 and not task.per_step:
        return y.shape[1]
    if int(y.max()) >= LARGEST_CLASSES:
        raise UserError(
            f"label {int(y.max())} makes more than {LARGEST_CLASSES} classes; number them from 0"
        )
    return max(int(y.max()) + 1, 1)
