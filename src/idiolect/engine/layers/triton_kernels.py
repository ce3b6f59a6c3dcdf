"""Convolutions of K clients as one Triton kernel each: K matrix products whose left side is
gathered from the images as it is needed, never written down.

The three maps of a convolution (see `conv.py`), for `x [K, B, C, H, W]` and `w [K, O, C, h, w]`:
outputs, gradient of the inputs, gradient of the weights. Products are float32: `tf32x3` splits
every operand in two for the tensor cores and keeps single precision; `tf32` does not split.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCKS_TO_FILL_GPU = 2 * 132  # an H200 has 132 multiprocessors
SMALL_BLOCKS_TO_FILL_GPU = 11 * 132
MAX_PARTS_OF_SUM = 16
PLACES_PER_BLOCK = 256  # where every place of an image is computed on its own


@dataclass(frozen=True)
class Tile:
    """How a product is cut: rows, depth and columns of a block, and how it is run; and how many
    blocks there should be where that can be chosen."""

    rows: int
    depth: int
    columns: int
    warps: int
    stages: int
    blocks: int = BLOCKS_TO_FILL_GPU


@triton.jit
def _outputs(
    x, w, bias, y, M,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    O: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    R: tl.constexpr = C * KH * KW
    k = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(1) * BN + tl.arange(0, BN)
    n, at = m // (OH * OW), m % (OH * OW)
    top, left = at // OW * SH - PH, at % OW * SW - PW
    row = n * (C * H * W) + top * W + left
    x += k * (M // (OH * OW)) * (C * H * W)
    w += k * O * R
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, R, BK):
        r = start + tl.arange(0, BK)
        c, ij = r // (KH * KW), r % (KH * KW)
        i, j = ij // KW * DH, ij % KW * DW
        real = (m < M)[:, None] & (r < R)[None, :]
        if PH > 0 or PW > 0:
            ih, iw = top[:, None] + i[None, :], left[:, None] + j[None, :]
            real &= (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        a = tl.load(x + row[:, None] + (c * (H * W) + i * W + j)[None, :], real, 0.0)
        b = tl.load(w + r[:, None] + o[None, :] * R, (r < R)[:, None] & (o < O)[None, :], 0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + k * O + o, o < O, 0.0)[None, :]
    y += k * M * O
    to = (n * (O * OH * OW) + at)[:, None] + (o * (OH * OW))[None, :]
    tl.store(y + to, acc, (m < M)[:, None] & (o < O)[None, :])


@triton.jit(do_not_specialize=["PARTS"])
def _to_weights(
    x, g, w, M, PARTS,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    O: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    R: tl.constexpr = C * KH * KW
    k = (tl.program_id(2) // PARTS).to(tl.int64)
    part = tl.program_id(2) % PARTS
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(1) * BN + tl.arange(0, BN)
    c, ij = r // (KH * KW), r % (KH * KW)
    i, j = ij // KW * DH, ij % KW * DW
    row = c * (H * W) + i * W + j
    x += k * (M // (OH * OW)) * (C * H * W)
    g += k * M * O
    blocks = tl.cdiv(tl.cdiv(M, BK), PARTS)
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(blocks):
        m = (part * blocks + step) * BK + tl.arange(0, BK)
        n, at = m // (OH * OW), m % (OH * OW)
        top, left = at // OW * SH - PH, at % OW * SW - PW
        real = (r < R)[:, None] & (m < M)[None, :]
        if PH > 0 or PW > 0:
            ih, iw = i[:, None] + top[None, :], j[:, None] + left[None, :]
            real &= (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        a = tl.load(x + row[:, None] + (n * (C * H * W) + top * W + left)[None, :], real, 0.0)
        at_g = (n * (O * OH * OW) + at)[:, None] + (o * (OH * OW))[None, :]
        b = tl.load(g + at_g, (m < M)[:, None] & (o < O)[None, :], 0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    w += (part * (tl.num_programs(2) // PARTS) + k) * O * R
    tl.store(w + r[:, None] + (o * R)[None, :], acc, (r < R)[:, None] & (o < O)[None, :])


@triton.jit
def _fold(
    flat, x, N,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    plane, place = at // (H * W), (at % (H * W)).to(tl.int32)
    flat += plane * (KH * KW * OH * OW)
    top, left = place // W + PH, place % W + PW
    total = tl.zeros((BLOCK,), flat.dtype.element_ty)
    for i in tl.static_range(0, KH):
        for j in tl.static_range(0, KW):
            oh, ow = top - i * DH, left - j * DW
            real = (at < N) & (oh >= 0) & (ow >= 0) & (oh % SH == 0) & (ow % SW == 0)
            oh, ow = oh // SH, ow // SW
            real &= (oh < OH) & (ow < OW)
            total += tl.load(flat + (i * KW + j) * (OH * OW) + oh * OW + ow, real, 0.0)
    tl.store(x + at, total, at < N)


@triton.jit
def _pool(x, y, N, H: tl.constexpr, W: tl.constexpr, S: tl.constexpr, BLOCK: tl.constexpr):
    OH: tl.constexpr = H // S
    OW: tl.constexpr = W // S
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    corner = at // (OH * OW) * (H * W) + at % (OH * OW) // OW * (S * W) + at % OW * S
    best = tl.load(x + corner, at < N, 0.0)
    for q in tl.static_range(1, S * S):
        v = tl.load(x + corner + q // S * W + q % S, at < N, 0.0)
        best = tl.where((v > best) | (v != v), v, best)
    tl.store(y + at, best, at < N)


@triton.jit
def _unpool(
    x, g, out, N,
    H: tl.constexpr, W: tl.constexpr, S: tl.constexpr, BACK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Per window: `BACK` puts g where x is largest and zero elsewhere, else picks g there."""
    OH: tl.constexpr = H // S
    OW: tl.constexpr = W // S
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    corner = at // (OH * OW) * (H * W) + at % (OH * OW) // OW * (S * W) + at % OW * S
    best = tl.load(x + corner, at < N, 0.0)
    where = tl.zeros((BLOCK,), tl.int32)
    for q in tl.static_range(1, S * S):
        v = tl.load(x + corner + q // S * W + q % S, at < N, 0.0)
        larger = (v > best) | (v != v)
        best = tl.where(larger, v, best)
        where = tl.where(larger, q, where)
    if BACK:
        value = tl.load(g + at, at < N, 0.0)
        for q in tl.static_range(0, S * S):
            tl.store(out + corner + q // S * W + q % S, tl.where(where == q, value, 0.0), at < N)
    else:
        tl.store(out + at, tl.load(g + corner + where // S * W + where % S, at < N, 0.0), at < N)


Geometry = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]  # stride, padding, dilation
POINTWISE = ((1, 1), (0, 0), (1, 1))


def outputs(x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry, precision: str) -> Tensor:
    """`[K, B, O, oh, ow]`."""
    shape = _shape(x.shape, w.shape, how)
    clients, batch, (_, _, _, o, oh, ow, *_) = len(x), x.shape[1], shape
    y = x.new_empty(clients, batch, o, oh, ow)
    rows = batch * oh * ow
    t = _tile(o, w.shape[2:].numel(), clients * rows, precision)
    grid = (triton.cdiv(rows, t.rows), triton.cdiv(o, t.columns), clients)
    _outputs[grid](
        x, w, x if bias is None else bias, y, rows, *shape, bias is not None,
        t.rows, t.columns, t.depth, precision, num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    return y


def skinny(x: Tensor, w: Tensor, precision: str) -> Tensor:
    """`x [K, B, I]`, `w [K, O, I]` -> `[K, O, B]`: the long sum over I is that of a convolution's
    weights over all places."""
    x, w, none = x[:, None, ..., None], w[:, None, ..., None], torch.Size((1, 1))
    return to_weights(x, w, none, POINTWISE, precision)[..., 0, 0]


def to_weights(x: Tensor, g: Tensor, size: torch.Size, how: Geometry, precision: str) -> Tensor:
    """Gradient of the weights `[K, O, C, *size]`. A long sum is cut into parts that are added up
    afterwards, so that few clients keep the GPU busy too."""
    shape = torch.Size((len(g), g.shape[2], x.shape[2], *size))
    depth, rows = g[0, :, 0].numel(), shape[2:].numel()
    t = _weights_tile(rows, shape[1], depth, len(x), precision)
    blocks = triton.cdiv(rows, t.rows), triton.cdiv(shape[1], t.columns)
    free = t.blocks // (len(x) * blocks[0] * blocks[1])
    parts = max(1, min(free, MAX_PARTS_OF_SUM, triton.cdiv(depth, t.depth) // 4))
    w = x.new_empty(parts, *shape)
    _to_weights[(*blocks, len(x) * parts)](
        x, g, w, depth, parts, *_shape(x.shape, shape, how),
        t.rows, t.columns, t.depth, precision, num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    return w[0] if parts == 1 else w.sum(0)


def fold(flat: Tensor, window: torch.Size, size: torch.Size, how: Geometry) -> Tensor:
    """`[K, B, C h w, oh, ow]` -> `[K, B, C, *size]`: every place adds up what the windows over it
    say."""
    k, b, columns, oh, ow = flat.shape
    x = flat.new_empty(k, b, columns // window.numel(), *size)
    (sh, sw), (ph, pw), (dh, dw) = how
    _fold[(triton.cdiv(x.numel(), PLACES_PER_BLOCK),)](
        flat, x, x.numel(), *size, oh, ow, *window, sh, sw, ph, pw, dh, dw, PLACES_PER_BLOCK
    )
    return x


def pool(x: Tensor, size: int) -> Tensor:
    """The largest value of every window of `size` by `size`."""
    y = x.new_empty(*x.shape[:-2], x.shape[-2] // size, x.shape[-1] // size)
    grid = (triton.cdiv(y.numel(), PLACES_PER_BLOCK),)
    _pool[grid](x, y, y.numel(), *x.shape[-2:], size, PLACES_PER_BLOCK)
    return y


def unpool(x: Tensor, g: Tensor, size: int) -> Tensor:
    """g at the largest value of every window of x, zero elsewhere."""
    whole = all(n % size == 0 for n in x.shape[-2:])
    out = torch.empty_like(x) if whole else torch.zeros_like(x)
    _unpool[(triton.cdiv(g.numel(), PLACES_PER_BLOCK),)](
        x, g, out, g.numel(), *x.shape[-2:], size, True, PLACES_PER_BLOCK
    )
    return out


def pick(x: Tensor, v: Tensor, size: int) -> Tensor:
    """v where every window of x is largest."""
    out = x.new_empty(*x.shape[:-2], x.shape[-2] // size, x.shape[-1] // size)
    _unpool[(triton.cdiv(out.numel(), PLACES_PER_BLOCK),)](
        x, v, out, out.numel(), *x.shape[-2:], size, False, PLACES_PER_BLOCK
    )
    return out


def _shape(x: torch.Size, w: torch.Size, how: Geometry) -> tuple[int, ...]:
    """What the kernels are compiled for: C H W, O oh ow, h w, stride, padding, dilation."""
    (c, h, wide), (o, _, kh, kw) = x[2:], w[1:]
    (sh, sw), (ph, pw), (dh, dw) = how
    oh = (h + 2 * ph - dh * (kh - 1) - 1) // sh + 1
    ow = (wide + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    return (c, h, wide, o, oh, ow, kh, kw, sh, sw, ph, pw, dh, dw)


def _tile(columns: int, depth: int, rows: int, precision: str) -> Tile:
    """What was fastest on an H200 for products of this kind."""
    width = _width(columns)
    if columns > 64:
        return Tile(64, 32, 128, 2, 3) if precision == "tf32" else Tile(64, 64, 128, 4, 2)
    if width <= 32:
        return Tile(64, 128, width, 4, 2) if 64 < depth <= 128 else Tile(64, 32, width, 2, 3)
    if rows < 64 * BLOCKS_TO_FILL_GPU // 2:
        return Tile(32, 64, width, 4, 2)
    return Tile(128, 32, width, 4, 3) if precision == "tf32" else Tile(64, 64, width, 4, 2)


def _weights_tile(rows: int, columns: int, depth: int, clients: int, precision: str) -> Tile:
    width = _width(columns)
    if rows <= 16:
        return Tile(16, 64, 128 if columns >= 128 else width, 4, 3)
    if width <= 32:
        rows, depth, warps, stages = (32, 64, 4, 2) if precision == "tf32" else (32, 32, 2, 3)
        return Tile(rows, depth, width, warps, stages, SMALL_BLOCKS_TO_FILL_GPU)
    if clients == 1:
        return Tile(32, 32, width, 2, 3)
    if precision == "tf32":
        return Tile(64, 32, width, 4, 3)
    long = depth >= 4096 or clients * triton.cdiv(rows, 64) >= 2 * BLOCKS_TO_FILL_GPU
    return Tile(64, 32, width, 4, 3, 2 * BLOCKS_TO_FILL_GPU) if long else Tile(64, 64, width, 4, 2)


def _width(columns: int) -> int:
    return min(64, _power(columns))


def _power(n: int) -> int:
    """The next power of two, as large as the tensor cores need."""
    return max(16, triton.next_power_of_2(n))
