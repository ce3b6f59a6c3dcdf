"""Linear layers of K clients: batched products whose gradients lie in memory as the weights do.

Few samples times large weights, K times over, is a shape PyTorch's batched product is slow at; on a
GPU the outputs come from our own kernel where that is faster. Plain SGD takes its step inside the
product that would be the gradient (`Descent`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd.function import BackwardCFunction

from idiolect.engine.layers.choices import CHOICES, about
from idiolect.engine.layers.stacked import Stacked, fused, precision

SKINNY = 64  # samples from which our kernel is not tried


class Linear(nn.Linear):
    """The plain layer, as a map over stacks."""

    @classmethod
    def replaces(cls, layer: nn.Module) -> bool:
        return type(layer) is nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 2:
            return super().forward(x)
        bias = None if self.bias is None else self.bias[None]
        out: Tensor = Product.apply(x[None], self.weight[None], bias).squeeze(0)
        return out


def plain(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return torch.bmm(x, w.transpose(1, 2))
    return torch.baddbmm(bias[:, None], x, w.transpose(1, 2))


def skinny(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = fused().skinny(x.contiguous(), w.contiguous(), precision()).transpose(1, 2)
    return y if bias is None else y + bias[:, None]


def _ours(x: Tensor) -> bool:
    """Whether our kernels can do it; a grid has no more than 2^16 - 1 blocks in depth."""
    few = x.shape[1] <= SKINNY and len(x) < 2**16
    return x.is_cuda and x.dtype == torch.float32 and few and fused() is not None


class Descent:
    """Steps of plain SGD that layers take themselves: inside `with`, what they would return as the
    gradient of one of these weights waits until the backward pass is over and is then subtracted
    from the weights in place. Never written down, it saves half of the passes over them. Not in
    TF32, where runs so learned less (`docs/performance.md`)."""

    def __init__(self, weights: Iterable[Tensor]):
        self._own = {w.untyped_storage().data_ptr() for w in weights}
        self._products: list[tuple[Tensor, Tensor, Tensor]] = []

    def takes(self, w: Tensor) -> bool:
        """One of the weights itself, not something computed from them, and no view of one with a
        gradient of its own."""
        if precision() == "tf32" or is_functorch_wrapped_tensor(w) or not w.is_contiguous():
            return False
        if w.untyped_storage().data_ptr() not in self._own:
            return False
        node = w.grad_fn
        while node is not None:
            if isinstance(node, BackwardCFunction):
                return False
            node = node.next_functions[0][0] if node.next_functions else None
        return True

    def add(self, w: Tensor, g: Tensor, x: Tensor) -> None:
        self._products.append((w, g, x))

    def __enter__(self) -> None:
        self._before = _descent.set(self)

    def __exit__(self, *error: Any) -> None:
        _descent.reset(self._before)
        products, self._products = self._products, []  # their graph holds us: no circle
        if error[0] is None:
            for w, g, x in products:
                _step(w, g, x)


_descent: ContextVar[Descent | None] = ContextVar("descent", default=None)


def _step(w: Tensor, g: Tensor, x: Tensor) -> None:
    """`w [K, O, I]` minus the product of `g [K, B, O]` and `x [K, B, I]`, in place."""
    ways = {"plain": plain_step, "fused": fused_step}
    way = "plain"
    if _ours(x):
        case = ("step", *about(x.shape), *w.shape[1:])
        tried = {n: lambda w, g, x, do=do: do(w.clone(), g, x) for n, do in ways.items()}
        way = CHOICES.fastest(case, tried, (w, g, x))
    ways[way](w, g, x)


def plain_step(w: Tensor, g: Tensor, x: Tensor) -> None:
    w.baddbmm_(g.transpose(1, 2), x, alpha=-1)


def fused_step(w: Tensor, g: Tensor, x: Tensor) -> None:
    fused().step(w, g.contiguous(), x.contiguous())


class Product(Stacked):
    """`x [K, B, I]`, `w [K, O, I]` -> `[K, B, O]`."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        if _ours(x):
            case = ("linear", precision(), *about(x.shape), *w.shape[1:])
            way = CHOICES.fastest(case, {"plain": plain, "skinny": skinny}, (x, w, bias))
            return skinny(x, w, bias) if way == "skinny" else plain(x, w, bias)
        return plain(x, w, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, bias = inputs
        ctx.biased = bias is not None
        ctx.descent = _descent.get()
        # The weights to be moved, not what hooks on saved tensors may make of them.
        ctx.moved = w.detach() if ctx.descent is not None and ctx.descent.takes(w) else None
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        to_x, to_w, to_bias = ctx.needs_input_grad
        if to_w and ctx.moved is not None and not torch.is_grad_enabled():
            ctx.descent.add(ctx.moved, g, x)
            to_w = False
        return (
            torch.bmm(g, w) if to_x else None,
            torch.bmm(g.transpose(1, 2), x) if to_w else None,
            g.sum(1) if ctx.biased and to_bias else None,
        )
