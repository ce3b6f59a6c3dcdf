"""Layers with a difference of low rank, for K clients: the weight they share is multiplied with all
clients' samples in one product, the thin weights of each client in batched ones."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from idiolect.engine.layers import conv, linear
from idiolect.engine.layers.stack_function import in_transform, own_outputs, with_clients
from idiolect.models import low_rank


class StackedLowRankLinear(low_rank.LowRankLinear):
    """The layer, as a map over stacks."""

    def forward(self, x: Tensor) -> Tensor:
        if not in_transform():
            return super().forward(x)
        return product(x, self.weight, self.bias, self.lora_down, self.lora_up)


class StackedLowRankAttention(low_rank.LowRankAttention):
    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None, up: Tensor) -> Tensor:
        if not in_transform():
            return super()._product(x, weight, bias, up)
        return product(x, weight, bias, self.lora_down, up)


class StackedLowRankConv2d(low_rank.LowRankConv2d):
    def _thin(self, x: Tensor) -> Tensor:
        plain = self.padding_mode == "zeros" and not isinstance(self.padding, str) and x.ndim == 4
        if not (plain and in_transform()):
            return super()._thin(x)
        how = (self.stride, self.padding, self.dilation)
        out: Tensor = conv.Outputs.apply(x[None], self.lora_down[None], None, how).squeeze(0)
        return out


class StackedLowRankEmbedding(low_rank.LowRankEmbedding):
    def forward(self, x: Tensor) -> Tensor:
        thin = F.embedding(x, self.lora_rows, self.padding_idx)
        return F.embedding(x, self.weight, self.padding_idx) + linear.better(thin, self.lora_up)


STACKED: dict[type[nn.Module], type[nn.Module]] = {
    low_rank.LowRankLinear: StackedLowRankLinear,
    low_rank.LowRankAttention: StackedLowRankAttention,
    low_rank.LowRankConv2d: StackedLowRankConv2d,
    low_rank.LowRankEmbedding: StackedLowRankEmbedding,
}


def product(x: Tensor, w: Tensor, bias: Tensor | None, down: Tensor, up: Tensor) -> Tensor:
    """`x (w + up down)^T + bias` of one client of a stack."""
    rows = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])  # places of a sequence are samples
    own = None if bias is None else bias[None]
    out: Tensor = LowRankProduct.apply(rows[None], w, own, down[None], up[None])
    return out.squeeze(0) if x.ndim == 2 else out.reshape(*x.shape[:-1], -1)


class LowRankProduct(Function):
    """`x [K, B, I]`, `w [O, I]`, `bias [K, O]`, `down [K, r, I]`, `up [K, O, r]` -> `[K, B, O]`.
    The weight is frozen and gets no gradient."""

    @staticmethod
    @own_outputs
    def forward(x: Tensor, w: Tensor, bias: Tensor | None, down: Tensor, up: Tensor) -> Tensor:
        base = (x.flatten(0, 1) @ w.T).unflatten(0, x.shape[:2])
        base = base if bias is None else base.add_(bias[:, None])
        return base.baddbmm_(torch.bmm(x, down.mT), up.mT)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, bias, down, up = inputs
        ctx.biased = bias is not None
        ctx.save_for_backward(x, w, down, up)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w, down, up = ctx.saved_tensors
        to_x, to_w, to_bias, *_ = ctx.needs_input_grad
        assert not to_w, "the weight of an adapted layer is frozen"
        thin = torch.bmm(g, up)
        return (
            torch.baddbmm((g.flatten(0, 1) @ w).unflatten(0, g.shape[:2]), thin, down)
            if to_x
            else None,
            None,
            g.sum(1) if ctx.biased and to_bias else None,
            torch.bmm(thin.mT, x),
            torch.bmm(g.mT, torch.bmm(x, down.mT)),
        )

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        """A further axis of clients (or samples) joins the stack; the weight stays one."""
        x, w, *rest = args
        assert dims[1] is None, "the weight of an adapted layer is the same for all"
        joined = [
            t if t is None else with_clients(t, dim, info.batch_size).flatten(0, 1)
            for t, dim in zip((x, *rest), (dims[0], *dims[2:]), strict=True)
        ]
        out: Tensor = LowRankProduct.apply(joined[0], w, *joined[1:])
        return out.unflatten(0, (info.batch_size, -1)), 0
