"""Cross-entropy of samples on a GPU: a kernel for the values and one for their gradient, where
PyTorch's operations under `vmap` are three and five."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_CLASSES = 1024
VALUES_PER_BLOCK = 2048


@triton.jit
def _loss(
    x, y, g, out, N,
    C: tl.constexpr, GRADIENT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, COLUMNS)
    at = n.to(tl.int64)[:, None] * C + c[None, :]
    there = (n < N)[:, None] & (c < C)[None, :]
    value = tl.where((c < C)[None, :], tl.load(x + at, there, 0.0), -float("inf"))
    label = tl.load(y + n, n < N, 0)
    value -= tl.max(value, 1)[:, None]
    share = tl.exp(value)
    total = tl.sum(share, 1)
    own = c[None, :] == label[:, None]
    if GRADIENT:
        up = tl.load(g + n, n < N, 0.0)
        share = share / total[:, None] - own.to(tl.float32)
        tl.store(out + at, share * up[:, None], there)
    else:
        told = tl.sum(tl.where(own, value, 0.0), 1)
        tl.store(out + n, tl.log(total) - told, n < N)


def values(x: Tensor, y: Tensor) -> Tensor:
    """`x [..., C]` and labels `y [...]` -> `[...]`."""
    return _launch(x, y, x, torch.empty(y.shape, dtype=x.dtype, device=x.device), False)


def to_outputs(x: Tensor, y: Tensor, g: Tensor) -> Tensor:
    """The gradient of x, for that of the values `g [...]`."""
    return _launch(x, y, g.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device), True)


def _launch(x: Tensor, y: Tensor, g: Tensor, out: Tensor, gradient: bool) -> Tensor:
    classes, n = x.shape[-1], y.numel()
    columns = triton.next_power_of_2(classes)
    rows = max(1, min(VALUES_PER_BLOCK // columns, 32))
    grid = (triton.cdiv(n, rows),)
    _loss[grid](x.contiguous(), y.contiguous(), g, out, n, classes, gradient, rows, columns)
    return out
