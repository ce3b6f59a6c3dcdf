"""Convolutions with the max-pooling over windows of 2 by 2 and the ReLU behind them, on a GPU: one
kernel forward, which writes one value of four and, in a byte, which of its window that was.

Back, a value goes to its place and three zeros beside it. Where only the weights ask for it, as in
a first layer, it is never spread out: the sum over all places is made from the windows.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from idiolect.engine.layers import steps_inside
from idiolect.engine.layers.autotune import AUTOTUNER, about
from idiolect.engine.layers.conv import (
    Conv2d,
    Geometry,
    ToWeights,
    countable,
    fastest,
    laid,
    output_shape,
    output_size,
    steps,
    to_images,
)
from idiolect.engine.layers.pool import Back, WindowMax
from idiolect.engine.layers.stack_function import (
    Stacked,
    fused,
    fused_pool,
    fused_steps,
    precision,
    same_for_all,
)


class PooledConv2d(Conv2d):
    """What it pools, and `rectified`: what it cuts off below zero, is done in its kernel."""

    rectified = False

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 3:  # one sample without a batch axis
            return self.forward(x[None]).squeeze(0)
        if x.dtype != torch.float32 or same_for_all(self.weight, x):
            apart: Tensor = WindowMax.apply(super().forward(x), 2)[0]
            apart = apart.relu() if self.rectified else apart
            return apart.contiguous() if self.planes else apart
        how = (self.stride, self.padding, self.dilation)
        bias = None if self.bias is None else self.bias[None]
        args = (laid(x[None]), self.weight[None], bias, how, self.rectified)
        out: Tensor = PooledOutputs.apply(*args)[0].squeeze(0)
        return out.contiguous() if self.planes else out


class PooledOutputs(Stacked):
    """The largest of every 2 by 2 outputs, `[K, B, O, oh / 2, ow / 2]`, and which it was: 0 to 3,
    or 4 where it was cut off."""

    @staticmethod
    def forward(
        x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry, rectified: bool
    ) -> tuple[Tensor, Tensor]:
        if not _countable(x, w, how):
            return _apart(x, w, bias, how, rectified)
        y, where = fused().pooled_outputs(x, w, bias, how, precision(), rectified)
        return y, where

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, w, bias, ctx.how, ctx.rectified = inputs
        ctx.inside = steps_inside.of(w, bias)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, w, bias, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, w, bias, where = ctx.saved_tensors
        to_x, to_w, to_bias, *_ = ctx.needs_input_grad
        cut = where if ctx.rectified else None
        to_bias = to_bias and not steps_inside.takes_sum(ctx.inside[1], bias, g, cut)
        if to_w and not to_x:
            to_w = not _steps_by_windows(ctx.inside[0], w, x, g, where, ctx.how)
        found = None
        if to_x or to_w:
            every = Back.apply(where, g, output_size(x, w, ctx.how), 2)
            found = to_images(every, w, x, ctx.how) if to_x else None  # this is waited for
            to_w = to_w and not steps(ctx.inside[0], w, x, every, ctx.how)
        if to_bias and cut is not None:
            g = g.masked_fill(cut > 3, 0)
        return (
            found,
            ToWeights.apply(x, every, w.shape[3:], ctx.how) if to_w else None,
            g.sum((1, 3, 4)) if to_bias else None,
            None,
            None,
        )


def _countable(x: Tensor, w: Tensor, how: Geometry) -> bool:
    """Whether one kernel can do it. All outputs are never there, only their places are counted."""
    *stack, channels, high, wide = output_shape(x, w, how)
    pooled = (*stack, channels, high // 2, wide // 2)
    return countable(x.shape, (*stack, high, wide), pooled)


def _apart(
    x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry, rectified: bool
) -> tuple[Tensor, Tensor]:
    """The same by several kernels, for more than ours can count."""
    y, where = fused_pool().pool(fastest("outputs", x, w, bias, how), 2)
    if rectified:
        cut = y <= 0
        return y.masked_fill(cut, 0), where.masked_fill(cut, 4)
    return y, where


def _steps_by_windows(
    inside: Any, w: Tensor, x: Tensor, g: Tensor, where: Tensor, how: Geometry
) -> bool:
    """Whether the gradient of the weights was handed over as a step that is made from the windows,
    where that is faster than from all places."""
    size, by = w.shape[3:], precision()
    if not steps_inside.wanted(inside) or not _countable(x, w, how):
        return False

    def spread(x: Tensor, g: Tensor, where: Tensor) -> Tensor:
        every = Back.apply(where, g, output_size(x, w, how), 2)
        return fastest("to_weights", x, every, size, how)

    def by_windows(x: Tensor, g: Tensor, where: Tensor) -> Tensor:
        found: Tensor = fused().weight_parts(x, g, size, how, by, where)
        return found

    if x.is_cuda:  # a CPU has Triton's interpreter only, in tests
        case = ("windows", by, *about(x.shape), *w.shape[1:], how)
        ways = {"spread": spread, "windows": by_windows}
        if AUTOTUNER.fastest(case, ways, (x, g, where)) == "spread":
            return False
    step = partial(fused_steps().take_away, w.detach())
    inside.add_found(w, step, by_windows, x, g, where)
    return True
