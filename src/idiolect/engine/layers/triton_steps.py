"""Steps of SGD on a GPU that never write a gradient down: each is one pass over the weights."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 32, 64  # of a block; the fastest of ten on an H200 for the papers' CNNs
VALUES_PER_BLOCK = 1024


@triton.jit(do_not_specialize=["B"])
def _step(
    w, g, x, B,
    O: tl.constexpr, I: tl.constexpr, BB: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(2).to(tl.int64)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    i = tl.program_id(0) * BI + tl.arange(0, BI)
    b = tl.arange(0, BB)
    left = tl.load(
        g + k * B * O + b[None, :] * O + o[:, None], (b < B)[None, :] & (o < O)[:, None], 0.0
    )
    right = tl.load(
        x + k * B * I + b[:, None] * I + i[None, :], (b < B)[:, None] & (i < I)[None, :], 0.0
    )
    at = w + k * O * I + o[:, None] * I + i[None, :]
    there = (o < O)[:, None] & (i < I)[None, :]
    # Moving the weights takes longer than these products, so they need not be rounded.
    tl.store(at, tl.load(at, there) - tl.dot(left, right, input_precision="ieee"), there)


@triton.jit
def _take_away(w, parts, N, PARTS: tl.constexpr, VALUES: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * VALUES + tl.arange(0, VALUES)
    left = tl.load(w + at, at < N)
    for part in tl.static_range(PARTS):
        left -= tl.load(parts + part * N + at, at < N)
    tl.store(w + at, left, at < N)


def product(w: Tensor, g: Tensor, x: Tensor) -> None:
    """`w [K, O, I]` minus the product of `g [K, B, O]` and `x [K, B, I]`, in place, for few
    samples B."""
    (clients, o, i), batch = w.shape, x.shape[1]
    samples = max(16, triton.next_power_of_2(batch))
    _step[(triton.cdiv(i, COLUMNS), triton.cdiv(o, ROWS), clients)](
        w, g, x, batch, o, i, samples, ROWS, COLUMNS, num_warps=4
    )


def take_away(w: Tensor, parts: Tensor) -> None:
    """`w` minus all of `parts [parts, ...]`, in place."""
    n = w.numel()
    _take_away[(triton.cdiv(n, VALUES_PER_BLOCK),)](w, parts, n, len(parts), VALUES_PER_BLOCK)
