"""Convolutions of K clients as one Triton kernel each: K matrix products whose left side is
gathered from the images as it is needed, never written down.

The three maps of a convolution (see `conv.py`), for `x [K, B, C, H, W]` and `w [K, O, C, h, w]`:
outputs, gradient of the inputs, gradient of the weights. Images of many channels lie with the
channels of a pixel side by side, so that four values are moved at a time; so do all outputs.
Products are float32: `tf32x3` splits every operand in two for the tensor cores and keeps single
precision; `tf32` does not split.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCKS_TO_FILL_GPU = 4 * 132  # an H200 has 132 multiprocessors
MAX_PARTS_OF_SUM = 16
MIN_CHANNELS_SIDE_BY_SIDE = 16  # fewer are read plane by plane


@dataclass(frozen=True)
class Tile:
    """How a product is cut: rows, columns and depth of a block, and how it is run; and how many
    blocks there should be where that can be chosen."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    blocks: int = BLOCKS_TO_FILL_GPU


@triton.jit
def _place(at, OW: tl.constexpr, POOLED: tl.constexpr):
    """Row and column of an output; `POOLED`: the four of a window follow one another."""
    WIDE: tl.constexpr = OW // 2
    if POOLED:
        return at // 4 // WIDE * 2 + at % 4 // 2, at // 4 % WIDE * 2 + at % 2
    return at // OW, at % OW


@triton.jit
def _first_largest(acc, BM: tl.constexpr, BN: tl.constexpr, RELU: tl.constexpr):
    """Of every four rows: the largest values, and which row has them first; with `RELU`, 4 and
    zero where the largest is not above zero."""
    four = tl.permute(tl.reshape(acc, (BM // 4, 2, 2, BN)), (0, 3, 2, 1))
    upper, lower = tl.split(four)
    best, second = tl.split(upper)
    third, fourth = tl.split(lower)
    place = tl.zeros((BM // 4, BN), tl.int8)
    place = tl.where((second > best) | (second != second), 1, place)
    best = tl.where((second > best) | (second != second), second, best)
    place = tl.where((third > best) | (third != third), 2, place)
    best = tl.where((third > best) | (third != third), third, best)
    place = tl.where((fourth > best) | (fourth != fourth), 3, place)
    best = tl.where((fourth > best) | (fourth != fourth), fourth, best)
    if RELU:
        place = tl.where(best <= 0, 4, place)
        best = tl.where(best <= 0, 0.0, best)
    return best, place.to(tl.int8)


@triton.jit
def _outputs(
    x, w, bias, y, where, M,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    O: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    UH: tl.constexpr, UW: tl.constexpr, TURNED: tl.constexpr, LAST: tl.constexpr,
    BIAS: tl.constexpr, POOLED: tl.constexpr, RELU: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A row is a place of an output; `POOLED`: the largest of four is kept, and which it was.
    `UH`, `UW`: pixels as if so far apart. `TURNED`: the window is read from its end."""
    R: tl.constexpr = C * KH * KW
    k = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(1) * BN + tl.arange(0, BN)
    PLACES: tl.constexpr = OH // 2 * (OW // 2) * 4 if POOLED else OH * OW
    n, at = m // PLACES, m % PLACES
    oh, ow = _place(at, OW, POOLED)
    top, left = oh * SH - PH, ow * SW - PW
    x, w = x + k * (M // PLACES) * (C * H * W), w + k * O * R
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, R, BK):
        r = start + tl.arange(0, BK)
        ij, c = (r // C, r % C) if LAST else (r % (KH * KW), r // (KH * KW))
        i, j = ij // KW * DH, ij % KW * DW
        real, known = (m < M)[:, None], (o < O)[:, None]
        if R % BK != 0:  # a mask that says nothing would keep Triton from moving four at a time
            real &= (r < R)[None, :]
            known &= (r < R)[None, :]
        if UH > 1 or UW > 1:
            ih, iw = top[:, None] + i[None, :], left[:, None] + j[None, :]
            real &= (ih >= 0) & (ih < H * UH) & (ih % UH == 0)
            real &= (iw >= 0) & (iw < W * UW) & (iw % UW == 0)
            pixel = n[:, None] * (H * W) + ih // UH * W + iw // UW
            a = tl.load(x + pixel * C + c[None, :], real, 0.0)
        else:
            if PH > 0 or PW > 0:
                ih, iw = top[:, None] + i[None, :], left[:, None] + j[None, :]
                real &= (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
            row = n * (C * H * W) + (top * W + left) * (C if LAST else 1)
            column = (i * W + j) * C + c if LAST else c * (H * W) + i * W + j
            a = tl.load(x + row[:, None] + column[None, :], real, 0.0)
        at_w = (KH * KW - 1 - ij) * C + c if TURNED else r
        b = tl.load(w + o[:, None] * R + at_w[None, :], known, 0.0)
        acc = tl.dot(a, tl.trans(b), acc, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + k * O + o, o < O, 0.0)[None, :]
    if POOLED:
        best, place = _first_largest(acc, BM, BN, RELU)
        window = tl.program_id(0) * (BM // 4) + tl.arange(0, BM // 4)
        to = (k * (M // 4) + window)[:, None] * O + o[None, :]
        kept = (window < M // 4)[:, None] & (o < O)[None, :]
        tl.store(where + to, place, kept)
        tl.store(y + to, best, kept)
    else:
        to = (k * M + m)[:, None] * O + o[None, :]
        tl.store(y + to, acc, (m < M)[:, None] & (o < O)[None, :])


@triton.jit(do_not_specialize=["PARTS"])
def _to_weights(
    x, g, where, w, M, PARTS,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    O: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    LAST: tl.constexpr, G_LAST: tl.constexpr, POOLED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`POOLED`: g has a value for every window of four places; `where` is the one it belongs to."""
    R: tl.constexpr = C * KH * KW
    PLACES: tl.constexpr = OH // 2 * (OW // 2) * 4 if POOLED else OH * OW
    EACH: tl.constexpr = 4 if POOLED else 1  # places of a value
    k = (tl.program_id(2) // PARTS).to(tl.int64)
    part = tl.program_id(2) % PARTS
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(1) * BN + tl.arange(0, BN)
    if LAST:
        ij, c = r // C, r % C
    else:
        c, ij = r // (KH * KW), r % (KH * KW)
    i, j = ij // KW * DH, ij % KW * DW
    x += k * (M // PLACES) * (C * H * W)
    g += k * (M // EACH) * O
    where += k * (M // EACH) * O
    blocks = tl.cdiv(tl.cdiv(M, BK), PARTS)
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(blocks):
        m = (part * blocks + step) * BK + tl.arange(0, BK)
        n, at = m // PLACES, m % PLACES
        oh, ow = _place(at, OW, POOLED)
        top, left = oh * SH - PH, ow * SW - PW
        real = (r < R)[:, None] & (m < M)[None, :]
        if PH > 0 or PW > 0:
            ih, iw = i[:, None] + top[None, :], j[:, None] + left[None, :]
            real &= (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        row = (i * W + j) * C + c if LAST else c * (H * W) + i * W + j
        column = n * (C * H * W) + (top * W + left) * (C if LAST else 1)
        a = tl.load(x + row[:, None] + column[None, :], real, 0.0)
        if G_LAST:
            at_g = (m // EACH)[:, None] * O + o[None, :]
        else:
            at_g = (n * (O * OH * OW) + at)[:, None] + (o * (OH * OW))[None, :]
        there = (m < M)[:, None] & (o < O)[None, :]
        b = tl.load(g + at_g, there, 0.0)
        if POOLED:
            b = tl.where(tl.load(where + at_g, there, 4) == (m % 4)[:, None], b, 0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    w += (part * (tl.num_programs(2) // PARTS) + k) * O * R
    to = (c * (KH * KW) + ij)[:, None] + (o * R)[None, :]
    tl.store(w + to, acc, (r < R)[:, None] & (o < O)[None, :])


Geometry = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]  # stride, padding, dilation
POINTWISE = ((1, 1), (0, 0), (1, 1))
PLAIN = (False, False)  # neither pooled nor rectified


def outputs(x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry, precision: str) -> Tensor:
    """`[K, B, O, oh, ow]`."""
    x, last = _lying(x)
    w = w.permute(0, 1, 3, 4, 2) if last else w
    shape = _shape(x.shape, w.shape[1], _kernel(w, last), how)
    return _launch(x, w.contiguous(), bias, shape, (1, 1, False, last), PLAIN, precision)[0]


def pooled_outputs(
    x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry, precision: str, rectified: bool
) -> tuple[Tensor, Tensor]:
    """The largest outputs of every window of 2 by 2, `[K, B, O, oh / 2, ow / 2]`, and which of the
    four it was; `rectified`: zero and 4 where it is not above zero."""
    x, last = _lying(x)
    w = w.permute(0, 1, 3, 4, 2) if last else w
    shape = _shape(x.shape, w.shape[1], _kernel(w, last), how)
    after = (True, rectified)
    return _launch(x, w.contiguous(), bias, shape, (1, 1, False, last), after, precision)


def to_inputs(g: Tensor, w: Tensor, size: torch.Size, how: Geometry, precision: str) -> Tensor:
    """Gradient of the inputs `[K, B, C, *size]`: outputs of another convolution. The gradient is
    padded, its places lie a stride apart, the weights are turned around, and inputs and outputs
    are exchanged."""
    (up, (ph, pw), (dh, dw)), (kh, kw) = how, w.shape[3:]
    padding = dh * (kh - 1) - ph, dw * (kw - 1) - pw
    shape = (*g.shape[2:], w.shape[2], *size, kh, kw, 1, 1, *padding, dh, dw)
    turned = w.permute(0, 2, 3, 4, 1).contiguous()
    return _launch(side_by_side(g), turned, None, shape, (*up, True, True), PLAIN, precision)[0]


def _launch(
    x: Tensor, w: Tensor, bias: Tensor | None, shape: tuple[int, ...],
    how: tuple[int, int, bool, bool], after: tuple[bool, bool], precision: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    pooled = after[0]
    (clients, batch), (o, oh, ow) = x.shape[:2], shape[3:6]
    oh, ow = (oh // 2, ow // 2) if pooled else (oh, ow)
    y = x.new_empty(clients, batch, oh, ow, o)
    where = x.new_empty(y.shape if pooled else 1, dtype=torch.int8)
    rows = batch * oh * ow * (4 if pooled else 1)
    t = _tile(o, shape[0] * shape[6] * shape[7], clients * rows, precision)
    grid = (triton.cdiv(rows, t.rows), triton.cdiv(o, t.columns), clients)
    _outputs[grid](
        x, w, x if bias is None else bias.contiguous(), y, where, rows, *shape, *how,
        bias is not None, *after,
        t.rows, t.columns, t.depth, precision, num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    return as_planes(y), as_planes(where) if pooled else where


def skinny(x: Tensor, w: Tensor, precision: str) -> Tensor:
    """`x [K, B, I]`, `w [K, O, I]` -> `[K, O, B]`: the long sum over I is that of a convolution's
    weights over all places."""
    x, w = x[:, None, ..., None], w[:, None, ..., None]
    return _total(_sums(x, w, torch.Size((1, 1)), POINTWISE, precision, False, False))[..., 0, 0]


def to_weights(x: Tensor, g: Tensor, size: torch.Size, how: Geometry, precision: str) -> Tensor:
    """Gradient of the weights `[K, O, C, *size]`."""
    return _total(weight_parts(x, g, size, how, precision))


def weight_parts(
    x: Tensor, g: Tensor, size: torch.Size, how: Geometry, precision: str,
    where: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The same in parts that are to be added up, `[parts, K, O, C, *size]`. With `where`, g has a
    value for every window of 2 by 2 outputs, which belongs to that one of the four."""
    x, last = _lying(x)
    where = None if where is None else side_by_side(where)
    return _sums(x, side_by_side(g), size, how, precision, last, True, where)


def _total(parts: Tensor) -> Tensor:
    return parts[0] if len(parts) == 1 else parts.sum(0)


def _sums(
    x: Tensor, g: Tensor, size: torch.Size, how: Geometry, precision: str, last: bool, g_last: bool,
    where: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """A long sum is cut into parts that are added up afterwards, so that few clients keep the GPU
    busy too."""
    shape = torch.Size((len(g), g.shape[2], x.shape[2], *size))
    pooled = where is not None
    depth, rows = g[0, :, 0].numel() * (4 if pooled else 1), shape[2:].numel()
    t = _weights_tile(rows, shape[1], len(x), last, precision)
    blocks = triton.cdiv(rows, t.rows), triton.cdiv(shape[1], t.columns)
    free = t.blocks // (len(x) * blocks[0] * blocks[1])
    parts = max(1, min(free, MAX_PARTS_OF_SUM, triton.cdiv(depth, t.depth) // 4))
    w = x.new_empty(parts, *shape)
    _to_weights[(*blocks, len(x) * parts)](
        x, g, where if pooled else g, w, depth, parts,
        *_shape(x.shape, shape[1], size, how), last, g_last, pooled,
        t.rows, t.columns, t.depth, precision, num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    return w


def side_by_side(x: Tensor) -> Tensor:
    """The same values; in memory the channels of a pixel side by side."""
    return as_planes(x.permute(0, 1, 3, 4, 2).contiguous())


def as_planes(x: Tensor) -> Tensor:
    """`[K, B, H, W, C]` seen as `[K, B, C, H, W]`."""
    return x.permute(0, 1, 4, 2, 3)


def _lying(x: Tensor) -> tuple[Tensor, bool]:
    """Images as the kernels read them, and whether channels lie side by side."""
    last = x.shape[2] >= MIN_CHANNELS_SIDE_BY_SIDE
    return (side_by_side(x) if last else x.contiguous()), last


def _kernel(w: Tensor, last: bool) -> torch.Size:
    return w.shape[2:4] if last else w.shape[3:]


def _shape(x: torch.Size, o: int, size: torch.Size, how: Geometry) -> tuple[int, ...]:
    """What the kernels are compiled for: C H W, O oh ow, h w, stride, padding, dilation."""
    (c, h, wide), (kh, kw) = x[2:], size
    (sh, sw), (ph, pw), (dh, dw) = how
    oh = (h + 2 * ph - dh * (kh - 1) - 1) // sh + 1
    ow = (wide + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    return (c, h, wide, o, oh, ow, kh, kw, sh, sw, ph, pw, dh, dw)


def _tile(columns: int, depth: int, rows: int, precision: str) -> Tile:
    """What was fastest on an H200 for products of this kind."""
    width = _width(columns)
    once = precision == "tf32"
    if 64 < depth <= 128 and width <= 32:
        return Tile(128 if once else 64, width, 128, 4, 2)
    if rows < 64 * BLOCKS_TO_FILL_GPU // 4:
        return Tile(64, min(width, 32), 32, 4, 4)
    if columns > 64 and once:
        return Tile(128, 128, 32, 8, 3)
    if once or width > 32:
        return Tile(128, width, 32, 8 if width > 32 else 4, 3)
    return Tile(64, width, 32, 4, 3)


def _weights_tile(rows: int, columns: int, clients: int, last: bool, precision: str) -> Tile:
    width = _width(columns)
    if rows <= 16:
        return Tile(16, 128 if columns >= 128 else width, 64, 4, 3)
    if width <= 32:
        return Tile(32, width, 32, 1, 3, 2 * BLOCKS_TO_FILL_GPU)
    if clients <= 4 or not last:
        return Tile(32, width, 32, 4, 4)
    if precision == "tf32" and columns > 64:
        return Tile(128, width, 32, 2, 3, 2 * BLOCKS_TO_FILL_GPU)
    return Tile(32, width, 64, 4, 3) if precision == "tf32" else Tile(64, width, 16, 2, 4)


def _width(columns: int) -> int:
    """The next power of two, as large as the tensor cores need."""
    return min(64, max(16, triton.next_power_of_2(columns)))
