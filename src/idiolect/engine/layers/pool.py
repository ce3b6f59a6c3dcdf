"""Max-pooling over windows that do not overlap, without an index tensor: where the largest value
was is found again in the backward pass. The same values as PyTorch's with less memory
traffic; used on a GPU.

Three maps, each linear in its last tensor, are each other's derivatives: the pooled values, what
goes back to the inputs, and what is picked where the inputs are largest.
"""

from typing import Any

from torch import Tensor, nn
from torch.autograd import Function

from idiolect.engine.layers.stack_function import fused


class MaxPool2d(nn.MaxPool2d):
    """The plain layer over square windows side by side, by our kernel."""

    @classmethod
    def replaces(cls, layer: nn.Module) -> bool:
        if type(layer) is not nn.MaxPool2d or layer.ceil_mode or layer.return_indices:
            return False
        side, step = _side(layer.kernel_size), _side(layer.stride)
        return side == step > 0 and _side(layer.dilation) == 1 and _side(layer.padding) == 0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = WindowMax.apply(x, _side(self.kernel_size))
        return out


def _side(size: Any) -> int:
    """Of a square, else -1."""
    if isinstance(size, int):
        return size
    return int(size[0]) if len(set(size)) == 1 else -1


class _Map(Function):
    @classmethod
    def vmap(cls, info: Any, dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        """Leading axes are all alike."""
        n = info.batch_size
        wide = [
            (a.expand(n, *a.shape) if d is None else a.movedim(d, 0))
            if isinstance(a, Tensor)
            else a
            for a, d in zip(args, dims, strict=True)
        ]
        return cls.apply(*wide), 0

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.size = inputs
        ctx.save_for_backward(tensors[0])


class WindowMax(_Map):
    """The largest value of each window."""

    @staticmethod
    def forward(x: Tensor, size: int) -> Tensor:
        return fused().pool(x.contiguous(), size)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        return Back.apply(x, g, ctx.size), None


class Back(_Map):
    """g at the largest value of each window of x, zero elsewhere."""

    @staticmethod
    def forward(x: Tensor, g: Tensor, size: int) -> Tensor:
        return fused().unpool(x.contiguous(), g.contiguous(), size)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        return None, Pick.apply(x, v, ctx.size), None


class Pick(_Map):
    """v where each window of x is largest."""

    @staticmethod
    def forward(x: Tensor, v: Tensor, size: int) -> Tensor:
        return fused().pick(x.contiguous(), v.contiguous(), size)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        return None, Back.apply(x, g, ctx.size), None
