"""Steps of SGD on a GPU that never write a gradient down: each is one pass over the weights."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 32, 64  # of a block; the fastest of ten on an H200 for the papers' CNNs
VALUES_PER_BLOCK = 1024
BLOCKS_TO_FILL_GPU = 4 * 132
MAX_PARTS = 16  # of a sum; each is one more value to read for every one


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


@triton.jit(do_not_specialize=["M", "PARTS"])
def _sums(
    g, cut, out, M, PARTS, O: tl.constexpr, CUT: tl.constexpr, BM: tl.constexpr, BO: tl.constexpr
):  # fmt: skip
    """Of the columns of `g [K, M, O]`, in parts."""
    k, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    o = tl.program_id(0) * BO + tl.arange(0, BO)
    blocks = tl.cdiv(tl.cdiv(M, BM), PARTS)
    total = tl.zeros((BM, BO), tl.float32)
    for step in range(blocks):
        m = (part * blocks + step) * BM + tl.arange(0, BM)
        at = (k * M + m)[:, None] * O + o[None, :]
        there = (m < M)[:, None] & (o < O)[None, :]
        value = tl.load(g + at, there, 0.0)
        if CUT:
            value = tl.where(tl.load(cut + at, there, 0) > 3, 0.0, value)
        total += value
    tl.store(out + (part * tl.num_programs(2) + k) * O + o, tl.sum(total, 0), o < O)


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


def sums(g: Tensor, cut: Tensor | None = None) -> Tensor:
    """The sums over m of `g [K, M, O]` in parts that are to be added up, `[parts, K, O]`. What
    `cut` has above 3 does not count."""
    clients, m, o = g.shape
    columns = min(64, max(16, triton.next_power_of_2(o)))
    rows = VALUES_PER_BLOCK // columns
    blocks = triton.cdiv(o, columns)
    parts = max(1, min(MAX_PARTS, BLOCKS_TO_FILL_GPU // (clients * blocks), triton.cdiv(m, rows)))
    out = g.new_empty(parts, clients, o)
    given = (g, g if cut is None else cut, out, m, parts)
    _sums[(blocks, parts, clients)](*given, o, cut is not None, rows, columns, num_warps=4)
    return out
