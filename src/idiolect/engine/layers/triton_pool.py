"""Max-pooling as Triton kernels, over windows side by side, in the order images lie in."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PLACES_PER_BLOCK = 256


@triton.jit
def _pool(
    x, y, where, N, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, S: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The first of the largest values of every window, and which it was. `C` is the number of
    values of a pixel."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    WIDE: tl.constexpr = W // S * C
    HIGH: tl.constexpr = H // S
    image, h, w, c = at // (HIGH * WIDE), at // WIDE % HIGH, at % WIDE // C, at % C
    corner = image * (H * W * C) + h * (S * W * C) + w * (S * C) + c
    best = tl.load(x + corner, at < N, 0.0)
    place = tl.zeros((BLOCK,), tl.int8)
    for q in tl.static_range(1, S * S):
        v = tl.load(x + corner + (q // S * W + q % S) * C, at < N, 0.0)
        larger = (v > best) | (v != v)
        best = tl.where(larger, v, best)
        place = tl.where(larger, q, place).to(tl.int8)
    tl.store(y + at, best, at < N)
    tl.store(where + at, place, at < N)


@triton.jit
def _move(
    where, small, large, N, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, S: tl.constexpr,
    BACK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Per window: `BACK` writes the small one's value into the large one at its place, zero
    elsewhere; else the large one's value at its place into the small one, zero where the place is
    none of the window's."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    WIDE: tl.constexpr = W // S * C
    HIGH: tl.constexpr = H // S
    image, h, w, c = at // (HIGH * WIDE), at // WIDE % HIGH, at % WIDE // C, at % C
    corner = image * (H * W * C) + h * (S * W * C) + w * (S * C) + c
    place = tl.load(where + at, at < N, 0).to(tl.int32)
    if BACK:
        value = tl.load(small + at, at < N, 0.0)
        for q in tl.static_range(0, S * S):
            to = large + corner + (q // S * W + q % S) * C
            tl.store(to, tl.where(place == q, value, 0.0), at < N)
    else:
        there = (at < N) & (place < S * S)
        found = tl.load(large + corner + (place // S * W + place % S) * C, there, 0.0)
        tl.store(small + at, found, at < N)


def pool(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The largest value of every window of `size` by `size` of `x [..., C, H, W]`, and which of its
    places has it."""
    x, order = _lying(x)
    y = _empty(x, order, x.shape[-2] // size, x.shape[-1] // size)
    where = torch.empty_like(y, dtype=torch.int8)
    grid = (triton.cdiv(y.numel(), PLACES_PER_BLOCK),)
    _pool[grid](x, y, where, y.numel(), *_sizes(x, order), size, PLACES_PER_BLOCK)
    return y, where


def unpool(where: Tensor, g: Tensor, shape: torch.Size, size: int) -> Tensor:
    """g at the places of every window, zero elsewhere: `[..., *shape]`."""
    where, order = _lying(where)
    g = _as(g, order)
    out = _empty(g, order, *shape)
    if any(n % size for n in shape):
        out.zero_()  # beside the last window
    grid = (triton.cdiv(g.numel(), PLACES_PER_BLOCK),)
    _move[grid](where, g, out, g.numel(), *_sizes(out, order), size, True, PLACES_PER_BLOCK)
    return out


def pick(where: Tensor, v: Tensor, size: int) -> Tensor:
    """v at the places of every window."""
    where, order = _lying(where)
    v = _as(v, order)
    out = _empty(v, order, *where.shape[-2:])
    grid = (triton.cdiv(out.numel(), PLACES_PER_BLOCK),)
    _move[grid](where, out, v, out.numel(), *_sizes(v, order), size, False, PLACES_PER_BLOCK)
    return out


def _lying(x: Tensor) -> tuple[Tensor, bool]:
    """As it lies, and whether the channels of a pixel lie side by side; else plane by plane."""
    if not x.is_contiguous() and x.movedim(-3, -1).is_contiguous():
        return x, True
    return x.contiguous(), False


def _as(x: Tensor, side_by_side: bool) -> Tensor:
    return x.movedim(-3, -1).contiguous().movedim(-1, -3) if side_by_side else x.contiguous()


def _empty(x: Tensor, side_by_side: bool, high: int, wide: int) -> Tensor:
    """Like x, with planes of another size, lying as said."""
    *leading, channels = x.shape[:-2]
    if side_by_side:
        return x.new_empty(*leading, high, wide, channels).movedim(-1, -3)
    return x.new_empty(*leading, channels, high, wide)


def _sizes(x: Tensor, side_by_side: bool) -> tuple[int, int, int]:
    """Values of a pixel that lie side by side, height, width."""
    return (x.shape[-3] if side_by_side else 1), x.shape[-2], x.shape[-1]
