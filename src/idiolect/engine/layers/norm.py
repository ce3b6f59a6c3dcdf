"""Norms of K clients at once.

Layer norms: all samples are normalised by one kernel of PyTorch, then each client's scale and shift
come in one pass instead of two. Batch norms: sums over the images as they lie in memory, where
PyTorch's own would put the clients' channels side by side first, by operations of PyTorch or our
kernels, whichever is faster; and they can leave out samples that only fill up a batch, so that a
client's last, shorter batch goes with the others' full ones.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from idiolect.core.tree import Tree
from idiolect.engine.layers.autotune import AUTOTUNER, about
from idiolect.engine.layers.stack_function import Stacked, fused, fused_norm, in_transform, in_vmap

Gradients = tuple[Tensor, Tensor, Tensor]  # of inputs, scale and shift


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


_weights: ContextVar[Tensor | None] = ContextVar("weights", default=None)  # of the batch's samples


def with_filling(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`fn` of ONE client, with the weights `[B]` of its samples after its model: batch norms inside
    see those whose weight is zero as if they were not there. The weights sum to 1."""

    def filled(params: Tree, weight: Tensor, *given: Any) -> Tensor:
        token = _weights.set(weight)
        try:
            return fn(params, *given)
        finally:
            _weights.reset(token)

    return filled


def can_leave_out_filling(module: nn.Module) -> bool:
    """Whether all its batch norms do what `with_filling` asks of them."""
    norms = (m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
    return all(isinstance(norm, StackedBatchNorm2d) for norm in norms)


class StackedBatchNorm2d(nn.BatchNorm2d):
    """The plain layer on a GPU; where a gradient is taken inside the stack, as it is."""

    @classmethod
    def replaces(cls, layer: nn.Module) -> bool:
        return type(layer) is nn.BatchNorm2d and layer.affine

    def forward(self, x: Tensor) -> Tensor:
        by_batch = self.training or self.running_mean is None
        weight = _weights.get() if by_batch else None
        values: Any = x.numel() // x.shape[1]
        if weight is None and not (
            by_batch and in_vmap() and values > 1 and x.dtype == self.weight.dtype
        ):
            return super().forward(x.contiguous())
        if weight is not None and len(weight) != len(x):
            raise TypeError(
                "a loss that shows a network with batch norms other samples than those of its "
                "batch must be passed with coupled=True"
            )
        given = (x, self.weight, self.bias, weight)
        stacks = (None if one is None else one[None] for one in given)
        out, mean, var = Normalised.apply(*stacks, self.eps)
        if self.running_mean is not None and self.running_var is not None:
            assert self.momentum is not None  # `Net` asks for one
            if weight is not None:
                values = (weight > 0).sum().to(var.dtype) * (values // len(weight))
            kept, unbiased = 1 - self.momentum, var[0] * (values / (values - 1))
            self.running_mean.mul_(kept).add_(mean[0], alpha=self.momentum)
            self.running_var.mul_(kept).add_(unbiased, alpha=self.momentum)
        return out.squeeze(0)  # type: ignore[no-any-return]


class Normalised(Stacked):
    """`x [K, B, C, H, W]` by mean and variance of each client's channels, times `w [K, C]`, plus
    `b`; and those means and variances, which are not differentiated. `weight [K, B]`: of each
    sample in them; None: all count the same."""

    @staticmethod
    def forward(
        x: Tensor, w: Tensor, b: Tensor, weight: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        args = (x, w, b, weight, eps)
        way = _fastest("norm", {"plain": plain, "fused": ours}, args)
        return ours(*args) if way == "fused" else plain(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, w, _, weight, ctx.eps = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, w, weight, *output[1:])

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, w, weight, mean, var = ctx.saved_tensors
        args = (x, g, w, weight, mean, var, ctx.eps)
        way = _fastest("norm back", {"plain": plain_back, "fused": our_back}, args)
        to_x, to_w, to_b = our_back(*args) if way == "fused" else plain_back(*args)
        return to_x, to_w, to_b, None, None


def plain(
    x: Tensor, w: Tensor, b: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    mean = _mean(x, weight)
    apart = x - _wide(mean)
    var = _mean(apart.square(), weight)  # on a GPU much faster than PyTorch's `var_mean`
    scale = w * (var + eps).rsqrt()
    return torch.addcmul(_wide(b), apart, _wide(scale)), mean, var


def ours(
    x: Tensor, w: Tensor, b: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = fused_norm().normalise(x, w, b, weight, eps)
    return found


def plain_back(
    x: Tensor, g: Tensor, w: Tensor, weight: Tensor | None, mean: Tensor, var: Tensor, eps: float
) -> Gradients:
    over = (var + eps).rsqrt()
    apart = x - _wide(mean)
    to_b = g.sum((1, 3, 4))
    to_w = (g * apart).sum((1, 3, 4)) * over
    # What is left of g without its mean and its part along the normalised values.
    if weight is None:
        values = x[0, :, 0].numel()
        left = torch.addcmul(g, apart, _wide(to_w * over), value=-1 / values)
        left = left - _wide(to_b / values)
    else:
        share = weight[:, :, None, None, None] / x[0, 0, 0].numel()
        left = g - share * torch.addcmul(_wide(to_b), apart, _wide(to_w * over))
    return left.mul_(_wide(w * over)), to_w, to_b


def our_back(
    x: Tensor, g: Tensor, w: Tensor, weight: Tensor | None, mean: Tensor, var: Tensor, eps: float
) -> Gradients:
    lying: Tensor = fused().side_by_side(g)
    found: Gradients = fused_norm().back(x, lying, w, weight, mean, var, eps)
    return found


def _fastest(what: str, ways: dict[str, Callable[..., Any]], args: tuple[Any, ...]) -> str:
    """Our kernels are for float32 on a GPU, channels side by side in memory."""
    x = args[0]
    fits = x.is_cuda and x.dtype == torch.float32 and len(x) < 2**16 and fused() is not None
    if not fits or not x.permute(0, 1, 3, 4, 2).is_contiguous():
        return "plain"
    case = (what, args[3] is not None, *about(x.shape))  # with weights or without
    return AUTOTUNER.fastest(case, ways, args)


def _mean(x: Tensor, weight: Tensor | None) -> Tensor:
    """Of each client's channels, `[K, C]`."""
    if weight is None:
        return x.mean((1, 3, 4))
    return (x.mean((3, 4)) * weight[:, :, None]).sum(1)


def _wide(x: Tensor) -> Tensor:
    """`[K, C]` beside `[K, B, C, H, W]`."""
    return x[:, None, :, None, None]
