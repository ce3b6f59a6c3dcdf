"""Layers on sequences of K clients against PyTorch's own: values, and gradients of first and second
order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from idiolect.core.net import Net
from idiolect.engine.layers import functions, linear, norm, recurrent_cells
from idiolect.engine.layers.recurrent import StackedRecurrent


def derivatives(module: nn.Module) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    start = {
        n: 0.4 * torch.randn(3, *p.shape, generator=draw, dtype=torch.float64)
        for n, p in module.named_parameters()
    }
    x = torch.randn(3, 2, 5, 4, generator=draw, dtype=torch.float64)

    def loss(p: dict[str, Tensor], x: Tensor) -> Tensor:
        out = functional_call(module, p, (x,))
        return torch.tanh(out[0] if isinstance(out, tuple) else out).square().sum()

    def ahead(p: dict[str, Tensor], x: Tensor) -> Tensor:
        g = grad(loss)(p, x)
        return loss({n: p[n] - 0.1 * g[n] for n in p}, x)

    found = []
    for fn in (loss, ahead):
        leaf = {n: v.clone().requires_grad_() for n, v in start.items()}
        values = vmap(fn)(leaf, x)
        found += [values, *torch.autograd.grad(values.sum(), list(leaf.values()))]
    return found


@pytest.mark.parametrize(
    ("plain", "ours"),
    [
        (lambda: nn.Linear(4, 6), linear.StackedLinear),
        (lambda: nn.Linear(4, 6, bias=False), linear.StackedLinear),
        (lambda: nn.LayerNorm(4), norm.StackedLayerNorm),
    ],
    ids=["linear", "linear, no bias", "layer norm"],
)
def test_equal_those_of_pytorch(plain: Callable[[], nn.Module], ours: type[nn.Module]) -> None:
    module, other = plain().double(), plain().double()
    assert ours.replaces(other)  # type: ignore[attr-defined]
    other.__class__ = ours
    for mine, wanted in zip(derivatives(other), derivatives(module), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_recurrent_layers_equal_steps_written_out(kind: type[nn.RNNBase]) -> None:
    """First derivatives by the stacked steps, second by the steps written out, in one test: the
    second order of the one is the first order of the other."""
    module = Net(nn.Sequential(kind(4, 3, batch_first=True).double(), Last())).module[0]  # type: ignore[call-arg, arg-type, index]
    module.__class__ = StackedRecurrent.of(type(module))
    start = {n: p.detach().expand(3, *p.shape).clone() for n, p in module.named_parameters()}
    x = torch.randn(3, 2, 5, 4, dtype=torch.float64)

    def loss(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.tanh(functional_call(module, p, (x,))[0]).square().sum()

    leaf = {n: v.clone().requires_grad_() for n, v in start.items()}
    stacked = torch.autograd.grad(vmap(loss)(leaf, x).sum(), list(leaf.values()))
    written = vmap(grad(loss))(start, x)
    for mine, wanted in zip(stacked, written.values(), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-11, atol=1e-12)


class Last(nn.Linear):
    """Only so that there is a head."""

    def __init__(self) -> None:
        super().__init__(3, 2, dtype=torch.float64)

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        return super().forward(x[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("cell", "gates"), [(recurrent_cells.GRU, 3), (recurrent_cells.LSTM, 4)])
def test_cells_of_pytorch_equal_ours(cell: recurrent_cells.RecurrentCell, gates: int) -> None:
    torch.manual_seed(0)
    given, own = (torch.randn(3, 2, gates * 5, dtype=torch.float64).cuda() for _ in range(2))
    h, c, g, m = (torch.randn(3, 2, 5, dtype=torch.float64).cuda() for _ in range(4))
    memory = c if gates == 4 else None
    ours, fused = cell.step(given, own, h, memory), cell.fused_step(given, own, h, memory)
    back = cell.back(g, m if gates == 4 else None, ours[2], memory, ours[1])
    fused_back = cell.fused_back(g, m if gates == 4 else None, fused[2], memory, fused[1])
    for one, other in zip([*ours[:2], *back], [*fused[:2], *fused_back], strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def test_our_product_is_used_inside_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the projections of PyTorch's attention are products of all clients."""
    module = nn.MultiheadAttention(4, 2, batch_first=True).double()
    start = {n: p.detach().expand(3, *p.shape).clone() for n, p in module.named_parameters()}
    x, calls = torch.randn(3, 2, 5, 4, dtype=torch.float64), []

    def product(*given: Tensor) -> Tensor:
        calls.append(len(given))
        return linear.by_product(*given)

    def attention(p: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(module, p, (x, x, x), {"need_weights": False})[0]
        return out

    def both() -> tuple[Tensor, ...]:
        leaf = {n: v.clone().requires_grad_() for n, v in start.items()}
        with functions.BetterFunctions():
            out = vmap(attention)(leaf, x)
        return out, *torch.autograd.grad(out.sin().sum(), list(leaf.values()))

    plain = both()
    outer = functions._multi_head.__globals__
    for called in (outer, outer["_in_projection_packed"].__globals__):
        monkeypatch.setitem(called, "linear", product)
    for one, other in zip(both(), plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)
    assert len(calls) == 2
