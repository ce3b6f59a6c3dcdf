"""Max-pooling over windows that do not overlap: the same values as PyTorch's. On a GPU the place of
a window that was largest is kept in one byte, all that the backward pass needs. On a CPU PyTorch's
own kernel is several times faster where the channels of a pixel lie side by side, so stacks are
laid out like that for it.

What goes back to the inputs and what is picked at those places are linear maps and each other's
derivatives.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from idiolect.engine.layers.stack_function import fused_pool, in_some_vmap


class MaxPool2d(nn.MaxPool2d):
    """The plain layer over square windows side by side, by our kernel."""

    @classmethod
    def replaces(cls, layer: nn.Module) -> bool:
        if type(layer) is not nn.MaxPool2d or layer.ceil_mode or layer.return_indices:
            return False
        side, step = _side(layer.kernel_size), _side(layer.stride)
        return side == step > 0 and _side(layer.dilation) == 1 and _side(layer.padding) == 0

    @property
    def side(self) -> int:
        return _side(self.kernel_size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = WindowMax.apply(x, self.side)[0]
        return out


class PixelMaxPool2d(MaxPool2d):
    """The same on a CPU: a stack is laid out as PyTorch's kernel likes it. Images of one client are
    so already."""

    def forward(self, x: Tensor) -> Tensor:
        if not in_some_vmap():
            return nn.MaxPool2d.forward(self, x)
        out: Tensor = PixelWindowMax.apply(x, self.side)[0]
        return out


def _side(size: Any) -> int:
    """Of a square, else -1."""
    if isinstance(size, int):
        return size
    return int(size[0]) if len(set(size)) == 1 else -1


class _Map(Function):
    @classmethod
    def vmap(cls, info: Any, dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        """Leading axes are all alike."""
        n = info.batch_size
        wide = [
            (a.expand(n, *a.shape) if d is None else a.movedim(d, 0))
            if isinstance(a, Tensor)
            else a
            for a, d in zip(args, dims, strict=True)
        ]
        out = cls.apply(*wide)
        return out, (0, 0) if isinstance(out, tuple) else 0


class WindowMax(_Map):
    """The largest value of each window, and its place."""

    @staticmethod
    def forward(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
        y, where = fused_pool().pool(x, size)
        return y, where

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, ctx.size = inputs
        ctx.shape = x.shape[-2:]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (where,) = ctx.saved_tensors
        return Back.apply(where, g, ctx.shape, ctx.size), None


class PixelWindowMax(WindowMax):
    """The same by PyTorch's kernel, and its places in the image."""

    @staticmethod
    def forward(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
        y, where = torch.ops.aten.max_pool2d_with_indices(_pixels(x), [size, size])
        shape = (*x.shape[:-2], *y.shape[-2:])
        return y.contiguous().view(shape), where.reshape(shape)  # `view` may follow in a network


def _pixels(x: Tensor) -> Tensor:
    """`[..., C, H, W]` -> `[N, C, H, W]` with the channels of a pixel side by side."""
    return x.movedim(-3, -1).reshape(-1, *x.shape[-2:], x.shape[-3]).movedim(-1, -3)


class Back(_Map):
    """g at the place of each window, zero elsewhere."""

    @staticmethod
    def forward(where: Tensor, g: Tensor, shape: torch.Size, size: int) -> Tensor:
        if where.dtype == torch.int64:  # PyTorch's kernel found them
            zeros = g.new_zeros(*g.shape[:-2], prod(shape))
            return zeros.scatter_(-1, where.flatten(-2), g.flatten(-2)).unflatten(-1, shape)
        out: Tensor = fused_pool().unpool(where, g, shape, size)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        where, _, _, ctx.size = inputs
        ctx.save_for_backward(where)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        (where,) = ctx.saved_tensors
        return None, Pick.apply(where, v, ctx.size), None, None


class Pick(_Map):
    """v at the place of each window."""

    @staticmethod
    def forward(where: Tensor, v: Tensor, size: int) -> Tensor:
        if where.dtype == torch.int64:
            return v.flatten(-2).gather(-1, where.flatten(-2)).view(where.shape)
        out: Tensor = fused_pool().pick(where, v, size)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        where, v, ctx.size = inputs
        ctx.shape = v.shape[-2:]
        ctx.save_for_backward(where)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (where,) = ctx.saved_tensors
        return None, Back.apply(where, g, ctx.shape, ctx.size), None
