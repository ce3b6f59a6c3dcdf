"""Norms of K clients at once.

Layer norms: all samples are normalised by one kernel of PyTorch, then each client's scale and shift
come in one pass instead of two. Batch norms: sums over the images as they lie in memory, where
PyTorch's own would put the clients' channels side by side first.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from idiolect.engine.layers.stack_function import Stacked, in_transform, in_vmap


class StackedLayerNorm(nn.LayerNorm):
    """The plain layer; outside of stacks as it is."""

    @classmethod
    def replaces(cls, layer: nn.Module) -> bool:
        return type(layer) is nn.LayerNorm and layer.elementwise_affine and layer.bias is not None

    def forward(self, x: Tensor) -> Tensor:
        if not in_transform():
            return super().forward(x)
        even = F.layer_norm(x, self.normalized_shape, eps=self.eps)
        return torch.addcmul(self.bias, even, self.weight)


class StackedBatchNorm2d(nn.BatchNorm2d):
    """The plain layer on a GPU; where a gradient is taken inside the stack, as it is."""

    @classmethod
    def replaces(cls, layer: nn.Module) -> bool:
        return type(layer) is nn.BatchNorm2d and layer.affine

    def forward(self, x: Tensor) -> Tensor:
        by_batch = self.training or self.running_mean is None
        values = x.numel() // x.shape[1]
        if not (by_batch and in_vmap() and values > 1 and x.dtype == self.weight.dtype):
            return super().forward(x.contiguous())
        out, mean, var = Normalised.apply(x[None], self.weight[None], self.bias[None], self.eps)
        if self.running_mean is not None and self.running_var is not None:
            assert self.momentum is not None  # `Net` asks for one
            kept, unbiased = 1 - self.momentum, values / (values - 1)
            self.running_mean.mul_(kept).add_(self.momentum * mean[0])
            self.running_var.mul_(kept).add_(self.momentum * unbiased * var[0])
        return out.squeeze(0)  # type: ignore[no-any-return]


class Normalised(Stacked):
    """`x [K, B, C, H, W]` by mean and variance of each client's channels, times `w [K, C]`, plus
    `b`; and those means and variances, which are not differentiated."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        mean = x.mean((1, 3, 4))
        apart = x - _wide(mean)
        var = apart.square().mean((1, 3, 4))  # on a GPU much faster than PyTorch's `var_mean`
        scale = w * (var + eps).rsqrt()
        return torch.addcmul(_wide(b), apart, _wide(scale)), mean, var

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, w, _, ctx.eps = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, w, *output[1:])

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, w, mean, var = ctx.saved_tensors
        over = (var + ctx.eps).rsqrt()
        apart, values = x - _wide(mean), x[0, :, 0].numel()
        to_b = g.sum((1, 3, 4))
        to_w = (g * apart).sum((1, 3, 4)) * over
        # What is left of g without its mean and its part along the normalised values.
        left = torch.addcmul(g, apart, _wide(to_w * over), value=-1 / values)
        to_x = (left - _wide(to_b / values)).mul_(_wide(w * over))
        return to_x, to_w, to_b, None


def _wide(x: Tensor) -> Tensor:
    """`[K, C]` beside `[K, B, C, H, W]`."""
    return x[:, None, :, None, None]
