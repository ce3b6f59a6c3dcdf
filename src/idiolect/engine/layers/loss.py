"""Cross-entropy of the samples of K clients, by our kernels on a GPU."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from idiolect.core.task import CLASSIFICATION
from idiolect.engine.layers.stack_function import Stacked, fused_loss, in_transform


def of_samples(out: Tensor, y: Tensor) -> Tensor:
    """The task's loss for samples with classes, `out [B, C]`, `y [B]` -> `[B]`."""
    if out.dtype != torch.float32 or out.ndim != 2 or out.shape[1] > fused_loss().MAX_CLASSES:
        return CLASSIFICATION.loss(out, y)
    value: Tensor = CrossEntropy.apply(out[None], y[None]).squeeze(0)
    return value


def of_one(out: Tensor, y: Tensor) -> Tensor:
    """The same on a CPU, for clients that are alone: PyTorch's own, in one operation."""
    return (
        CLASSIFICATION.loss(out, y) if in_transform() else F.cross_entropy(out, y, reduction="none")
    )


class CrossEntropy(Stacked):
    """`x [K, B, C]`, `y [K, B]` -> `[K, B]`."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = fused_loss().values(x, y)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, y = ctx.saved_tensors
        if torch.is_grad_enabled():  # written out, to be differentiated again
            own = y[..., None] == torch.arange(x.shape[-1], device=y.device)
            return (x.softmax(-1) - own.to(x.dtype)) * g[..., None], None
        return fused_loss().to_outputs(x, y, g), None
