"""One client's own arrays: which there must be, and as which tensors a Federation holds them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect.core.task import CLASSIFICATION, LearningTask
from idiolect.core.text import shortened
from idiolect.data.labels import as_int64, refuse_masked, told
from idiolect.errors import UserError

PARTS = ("train", "val", "test")


def check_keys(i: int, client: Any) -> None:
    if not isinstance(client, Mapping):
        got = shortened(repr(client), 40)
        raise UserError(f"client {i} must map x_train, y_train, … to arrays, got {got}")
    known = sorted(f"{v}_{part}" for v in "xy" for part in PARTS)
    for key in client:
        if key not in known:
            told_key = shortened(key, 40)
            raise UserError(f"client {i}: unknown array '{told_key}'; known: {', '.join(known)}")
    for key in ("x_train", "y_train", "x_test", "y_test"):
        if key not in client:
            raise UserError(f"client {i}: '{key}' is missing")
    if ("x_val" in client) != ("y_val" in client):
        raise UserError(f"client {i}: give both x_val and y_val, or neither")


def pair(
    i: int, part: str, client: Mapping[str, Any], task: LearningTask = CLASSIFICATION
) -> tuple[Tensor, Tensor]:
    """x and y of one part of one client, in the types that a Federation holds."""
    if f"x_{part}" not in client:
        return torch.empty(0, 1), torch.empty(0, dtype=torch.int64)
    x, y = (as_tensor(client[f"{v}_{part}"], f"client {i}: {v}_{part}") for v in "xy")
    whole = task.has_classes or task.per_step
    if task.per_step:
        if y.is_floating_point() or y.is_complex() or y.ndim != 2:
            raise UserError(f"client {i}: y_{part} must be whole numbers of shape [M, steps]")
    elif not task.has_classes:
        y = y[:, None] if y.ndim == 1 else y
        if y.is_complex() or y.ndim != 2:
            raise UserError(f"client {i}: y_{part} must be numbers of shape [M] or [M, outputs]")
    elif y.is_floating_point() or y.is_complex() or y.ndim != 1:
        raise UserError(f"client {i}: y_{part} must be whole numbers of shape [M]")
    if x.ndim < 2 or x.is_complex():
        told = "complex" if x.is_complex() else f"of shape {list(x.shape)}"
        raise UserError(f"client {i}: x_{part} must be [M, D] or [M, C, H, W], got {told}")
    if len(x) != len(y):
        raise UserError(f"client {i}: x_{part} has {len(x)} samples, y_{part} {len(y)} labels")
    if x.dtype != torch.uint8 and not x.is_floating_point():
        x = x.to(torch.int64)
    return x, y.to(torch.int64 if whole else torch.float32)


def as_tensor(value: Any, what: str) -> Tensor:
    """An array of numbers as a tensor of its own."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_quantized:
            raise UserError(f"{what} must be a dense tensor")
        value = value.detach().cpu()
        return value if value.dtype != torch.uint64 else as_tensor(value.numpy(), what)
    try:
        array = np.asanyarray(value)
    except (TypeError, ValueError):
        raise UserError(f"{what} is no array: its entries differ in shape") from None
    refuse_masked(array, what)
    if array.dtype.kind not in "iufbc" or array.dtype.itemsize > 16 or array.dtype == np.longdouble:
        raise UserError(f"{what} must be numbers, got {told(array)}")
    if array.dtype.kind == "u" and array.dtype.itemsize == 8:
        array = as_int64(array, what)
    return torch.as_tensor(np.array(array, dtype=array.dtype.newbyteorder("=")))


def check_alike(
    i: int, part: str, mine: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor] | None
) -> None:
    """Samples and targets of all clients have one form."""
    if others is None or not len(mine[0]):
        return
    for name, own, other in zip("xy", mine, others, strict=True):
        if own.shape[1:] != other.shape[1:] or own.dtype != other.dtype:
            what = "samples" if name == "x" else "targets"
            raise UserError(
                f"client {i}: {name}_{part} holds {own.dtype} {what} of shape"
                f" {list(own.shape[1:])}, others {other.dtype} of {list(other.shape[1:])};"
                " bring all clients to one form"
            )
