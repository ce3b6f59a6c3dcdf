"""Linear layers of K clients: batched products whose gradients lie in memory as the weights do.

Few samples times large weights, K times over, is a shape PyTorch's batched product is slow at; on a
GPU the outputs come from our own kernel where that is faster. SGD takes its step inside the product
that would be the gradient (`steps_inside.py`). On a CPU that is not Intel's, large float32 products
come from oneDNN, client by client: PyTorch's own, MKL, uses half of such a core's vector units.
"""

from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from idiolect.engine.layers import steps_inside
from idiolect.engine.layers.autotune import AUTOTUNER, about
from idiolect.engine.layers.stack_function import (
    Stacked,
    fused,
    fused_steps,
    in_transform,
    precision,
    same_for_all,
)

MAX_BATCH_FOR_OUR_KERNEL = 64  # samples
MIN_PRODUCTS_FOR_ONEDNN = 1 << 20  # multiplications of one client; a call takes 10 us


class StackedLinear(nn.Linear):
    """The plain layer, as a map over stacks."""

    @classmethod
    def replaces(cls, layer: nn.Module) -> bool:
        return type(layer) is nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        return better(x, self.weight, self.bias)


def better(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`, by our product where that is better."""
    if x.is_cuda:
        return by_product(x, w, bias)
    if not _for_onednn(x, w):
        return F.linear(x, w, bias)
    if in_transform() or x.ndim != 2:
        return by_product(x, w, bias)
    out: Tensor = OneProduct.apply(x, w, bias)
    return out


def by_product(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` of one client of a stack."""
    if same_for_all(w, x):
        return F.linear(x, w, bias)
    rows = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])  # places of a sequence are samples
    out: Tensor = Product.apply(rows[None], w[None], None if bias is None else bias[None])
    return out.squeeze(0) if x.ndim == 2 else out.reshape(*x.shape[:-1], -1)


def plain(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return torch.bmm(x, w.transpose(1, 2))
    return torch.baddbmm(bias[:, None], x, w.transpose(1, 2))


@cache
def onednn_is_faster() -> bool:
    """Whether MKL leaves out this CPU's AVX-512, which oneDNN uses. The maker decides: a timing
    could decide otherwise the next time, and a resumed run would round otherwise."""
    there = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    if not there or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    about = Path("/proc/cpuinfo")
    return about.is_file() and "GenuineIntel" not in about.read_text()


def _for_onednn(x: Tensor, w: Tensor) -> bool:
    """Of one client, or of a stack."""
    if x.is_cuda or x.dtype != torch.float32 or not onednn_is_faster():
        return False
    return x.shape[-2:].numel() * w.shape[-2] >= MIN_PRODUCTS_FOR_ONEDNN


def by_onednn(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """Of a stack."""
    biases = [None] * len(x) if bias is None else bias
    out = [_onednn(*given) for given in zip(x, w, biases, strict=True)]
    return out[0][None] if len(out) == 1 else torch.stack(out)


def _onednn(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """Of one client."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, w, bias, "none", [], "")
    return out


def _product(a: Tensor, b: Tensor) -> Tensor:
    """`a [K, B, I]` and `b [K, I, O]` -> `[K, B, O]`."""
    turned = b.transpose(1, 2)
    out: Tensor = Product.apply(a, turned, None) if _for_onednn(a, turned) else torch.bmm(a, b)
    return out


def skinny(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = fused().skinny(x.contiguous(), w.contiguous(), precision()).transpose(1, 2)
    return y if bias is None else y + bias[:, None]


def _ours(x: Tensor) -> bool:
    """Whether our kernels can do it; a grid has no more than 2^16 - 1 blocks in depth."""
    few = x.shape[1] <= MAX_BATCH_FOR_OUR_KERNEL and len(x) < 2**16
    return x.is_cuda and x.dtype == torch.float32 and few and fused() is not None


def step(w: Tensor, g: Tensor, x: Tensor) -> None:
    """`w [K, O, I]` minus the product of `g [K, B, O]` and `x [K, B, I]`, in place."""
    if not _ours(x):
        plain_step(w, g, x)
        return
    case = ("step", precision(), *about(x.shape), *w.shape[1:])
    ways = {"plain": plain_step, "fused": fused_step}
    tried = {name: lambda w, g, x, do=do: do(w.clone(), g, x) for name, do in ways.items()}
    ways[AUTOTUNER.fastest(case, tried, (w, g, x))](w, g, x)


def plain_step(w: Tensor, g: Tensor, x: Tensor) -> None:
    w.baddbmm_(g.transpose(1, 2), x, alpha=-1)


def fused_step(w: Tensor, g: Tensor, x: Tensor) -> None:
    fused_steps().product(w, g.contiguous(), x.contiguous())


class Product(Stacked):
    """`x [K, B, I]`, `w [K, O, I]` -> `[K, B, O]`."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        if _ours(x):
            case = ("linear", precision(), *about(x.shape), *w.shape[1:])
            way = AUTOTUNER.fastest(case, {"plain": plain, "skinny": skinny}, (x, w, bias))
            return skinny(x, w, bias) if way == "skinny" else plain(x, w, bias)
        return by_onednn(x, w, bias) if _for_onednn(x, w) else plain(x, w, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, bias = inputs
        ctx.inside = steps_inside.of(w, bias)
        ctx.save_for_backward(x, w, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w, bias = ctx.saved_tensors
        to_x, to_w, to_bias = ctx.needs_input_grad
        found = _product(g, w) if to_x else None  # this is waited for
        if to_w and not _for_onednn(x, w) and steps_inside.wanted(ctx.inside[0]):
            ctx.inside[0].add(w, partial(step, w.detach(), g, x))
            to_w = False
        to_bias = to_bias and not steps_inside.takes_sum(ctx.inside[1], bias, g)
        return (
            found,
            _product(g.transpose(1, 2), x) if to_w else None,
            g.sum(1) if to_bias else None,
        )


class OneProduct(Function):
    """The same for one client on a CPU, `x [B, I]`, `w [O, I]`, with less of Python around it: two
    clients in two threads wait for each other whenever Python has the word."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        ctx.biased = bias is not None
        ctx.save_for_backward(x, w)
        return _onednn(x, w, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        to_x, to_w, to_bias = ctx.needs_input_grad
        times = better if torch.is_grad_enabled() else _onednn
        return (
            times(g, w.t()) if to_x else None,
            times(g.t(), x.t()) if to_w else None,
            g.sum(0) if ctx.biased and to_bias else None,
        )
