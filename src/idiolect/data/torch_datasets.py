"""PyTorch datasets as arrays: every item is (x, y), what a DataLoader would put into batches."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect.core import rng
from idiolect.core.text import reason
from idiolect.data.splits.base import cut
from idiolect.errors import UserError


def arrays_of(i: int, given: Any, test_share: float, seed: int) -> dict[str, Any]:
    """Client i's arrays: of one dataset, or of its parts (train, test) or (train, val, test)."""
    parts = given if isinstance(given, tuple) else (given,)
    if len(parts) not in (1, 2, 3) or not all(_is_dataset(one) for one in parts):
        raise UserError(
            f"client {i}: give a dataset with length and items, or (train, test), or (train, val,"
            " test) of them"
        )
    if not 0 < test_share < 1:
        raise UserError(f"test_share must be above 0 and below 1, got {test_share}")
    if len(parts) == 1:
        rows = rng.keyed(seed, "from datasets", i).permutation(len(parts[0]))
        kept = dict(zip(("train", "test"), cut(rows, test_share), strict=True))
        found = {part: _stacked(i, part, parts[0], at) for part, at in kept.items()}
    else:
        names = ("train", "test") if len(parts) == 2 else ("train", "val", "test")
        found = {
            part: _stacked(i, part, one, np.arange(len(one)))
            for part, one in zip(names, parts, strict=True)
        }
    return {f"{v}_{part}": found[part][k] for part in found for k, v in enumerate("xy")}


def _is_dataset(one: Any) -> bool:
    return hasattr(one, "__len__") and hasattr(one, "__getitem__") and not isinstance(one, str)


def _stacked(i: int, part: str, dataset: Any, rows: np.ndarray) -> tuple[Any, Any]:
    what = f"client {i}: the {part} dataset"
    if not len(rows):
        raise UserError(f"{what} has no items")
    items = []
    for row in rows.tolist():
        try:
            item = dataset[row]
        except Exception as error:  # datasets are code of other people
            raise UserError(f"{what} failed at item {row} ({reason(error)})") from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise UserError(f"{what} must give (x, y), item {row} is {type(item).__name__}")
        items.append(item)
    try:
        return _batch([x for x, _ in items]), _batch([y for _, y in items])
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{what}: items differ in form or are no numbers ({reason(error)}); bring them to one"
            " form, e.g. by a transform"
        ) from None


def _batch(values: Sequence[Any]) -> Any:
    """One tensor of all; of dicts and tuples one for each entry. Images become [C, H, W]."""
    first = values[0]
    if isinstance(first, Mapping):
        return {name: _batch([one[name] for one in values]) for name in first}
    if isinstance(first, tuple):
        return tuple(_batch(list(column)) for column in zip(*values, strict=True))
    return torch.stack([_tensor(one) for one in values])


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    if hasattr(value, "getbands"):  # an image of Pillow
        # Pixels of a palette are numbers of its colours, which say nothing by themselves.
        pixels = np.array(value.convert("RGB") if value.mode == "P" else value)
        return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))
    return torch.as_tensor(value)
