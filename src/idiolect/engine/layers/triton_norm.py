"""Batch norms on a GPU, for images with the channels of a pixel side by side: one kernel forward
and one backward. A block has some channels of one client, and goes over all its pixels several
times; they stay in the GPU's cache meanwhile."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PIXELS_AT_ONCE = 256
CHANNELS = 8  # of a block: as many as lie in one sector of memory


@triton.jit
def _pixels(x, m, c, M, C: tl.constexpr):
    return tl.load(x + m[:, None] * C + c[None, :], (m < M)[:, None] & (c < C)[None, :], 0.0)


@triton.jit
def _shares(weight, m, M, PLACES: tl.constexpr, WEIGHTED: tl.constexpr):
    """What a pixel counts in a mean; zero behind the last one."""
    if WEIGHTED:
        return tl.load(weight + m // PLACES, m < M, 0.0)[:, None] / PLACES
    return (m < M).to(tl.float32)[:, None] / M


@triton.jit
def _normalise(
    x, w, b, weight, y, means, variances, M, eps, C: tl.constexpr, PLACES: tl.constexpr,
    WEIGHTED: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    x, y, weight = x + k * M * C, y + k * M * C, weight + k * (M // PLACES)
    at, real = k * C + c, c < C
    total = tl.zeros((BM, BC), tl.float32)
    for start in range(0, M, BM):
        m = start + tl.arange(0, BM)
        total += _pixels(x, m, c, M, C) * _shares(weight, m, M, PLACES, WEIGHTED)
    mean = tl.sum(total, 0)
    total = tl.zeros((BM, BC), tl.float32)
    for start in range(0, M, BM):
        m = start + tl.arange(0, BM)
        gap = _pixels(x, m, c, M, C) - mean[None, :]
        total += gap * gap * _shares(weight, m, M, PLACES, WEIGHTED)
    variance = tl.sum(total, 0)
    tl.store(means + at, mean, real)
    tl.store(variances + at, variance, real)
    scale = tl.load(w + at, real, 0.0) * tl.rsqrt(variance + eps)
    shift = tl.load(b + at, real, 0.0)
    for start in range(0, M, BM):
        m = start + tl.arange(0, BM)
        value = (_pixels(x, m, c, M, C) - mean[None, :]) * scale[None, :] + shift[None, :]
        tl.store(y + m[:, None] * C + c[None, :], value, (m < M)[:, None] & real[None, :])


@triton.jit
def _back(
    x, g, w, weight, means, variances, to_x, to_w, to_b, M, eps, C: tl.constexpr,
    PLACES: tl.constexpr, WEIGHTED: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    x, g, to_x = x + k * M * C, g + k * M * C, to_x + k * M * C
    weight += k * (M // PLACES)
    at, real = k * C + c, c < C
    mean = tl.load(means + at, real, 0.0)
    over = tl.rsqrt(tl.load(variances + at, real, 0.0) + eps)
    plain = tl.zeros((BM, BC), tl.float32)
    along = tl.zeros((BM, BC), tl.float32)
    for start in range(0, M, BM):
        m = start + tl.arange(0, BM)
        up = _pixels(g, m, c, M, C)
        plain += up
        along += up * (_pixels(x, m, c, M, C) - mean[None, :])
    shift, scale = tl.sum(plain, 0), tl.sum(along, 0) * over
    tl.store(to_b + at, shift, real)
    tl.store(to_w + at, scale, real)
    factor = tl.load(w + at, real, 0.0) * over
    for start in range(0, M, BM):
        m = start + tl.arange(0, BM)
        apart = (_pixels(x, m, c, M, C) - mean[None, :]) * over[None, :]
        share = _shares(weight, m, M, PLACES, WEIGHTED)
        left = _pixels(g, m, c, M, C) - share * (shift[None, :] + apart * scale[None, :])
        to = to_x + m[:, None] * C + c[None, :]
        tl.store(to, left * factor[None, :], (m < M)[:, None] & real[None, :])


def normalise(
    x: Tensor, w: Tensor, b: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The values, and mean and variance of each client's channels, `[K, C]`."""
    y, mean, variance = torch.empty_like(x), torch.empty_like(w), torch.empty_like(w)
    grid, sizes = _plan(x, weight)
    shares = x if weight is None else weight.contiguous()
    given = (x, w.contiguous(), b.contiguous(), shares, y, mean, variance, sizes[0], eps)
    _normalise[grid](*given, *sizes[1:], num_warps=4)
    return y, mean, variance


def back(
    x: Tensor, g: Tensor, w: Tensor, weight: Tensor | None, mean: Tensor, variance: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, scale and shift. `g` lies as `x` does."""
    to_x, to_w, to_b = torch.empty_like(x), torch.empty_like(mean), torch.empty_like(mean)
    grid, sizes = _plan(x, weight)
    shares = x if weight is None else weight.contiguous()
    given = (x, g, w.contiguous(), shares, mean, variance, to_x, to_w, to_b, sizes[0], eps)
    _back[grid](*given, *sizes[1:], num_warps=4)
    return to_x, to_w, to_b


def _plan(x: Tensor, weight: Tensor | None) -> tuple[tuple[int, int], tuple[int, ...]]:
    clients, batch, channels, high, wide = x.shape
    sizes = (batch * high * wide, channels, high * wide)
    grid = (triton.cdiv(channels, CHANNELS), clients)
    return grid, (*sizes, int(weight is not None), PIXELS_AT_ONCE, CHANNELS)
