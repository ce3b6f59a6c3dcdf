"""Linear layers that take their step of SGD inside the product that would be its gradient: on a GPU
they do, here they are made to on a CPU. The numbers must not move."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from idiolect import methods
from idiolect.engine import layers, stacked
from idiolect.engine.layers import conv, linear, pooled_conv, steps_inside
from idiolect.engine.layers.linear import StackedLinear
from idiolect.engine.layers.stack_function import fused_steps
from idiolect.engine.layers.steps_inside import StepsInside
from tests.engine.layers.test_layers import needs_triton
from tests.test_every_method import METHODS, begin, close, finish


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Shapes of the weights that stepped so, with linear layers as on a GPU."""
    seen: list[torch.Size] = []

    def forward(layer: StackedLinear, x: Tensor) -> Tensor:
        return linear.by_product(x, layer.weight, layer.bias)

    def install(module: Any, device: Any) -> None:
        for layer in module.modules():
            if StackedLinear.replaces(layer):
                layer.__class__ = StackedLinear

    def step(w: Tensor, g: Tensor, x: Tensor) -> None:
        seen.append(w.shape)
        linear.plain_step(w, g, x)

    monkeypatch.setattr(StackedLinear, "forward", forward)
    monkeypatch.setattr(stacked.layers, "install", install)
    monkeypatch.setattr(linear, "step", step)
    assert layers.install is install
    return seen


@pytest.mark.parametrize("name", METHODS)
def test_every_method_ends_where_the_loop_does(name: str, products: list[torch.Size]) -> None:
    loop, ours = finish(begin(name, engine="loop")), finish(begin(name))
    assert loop[0].keys() == ours[0].keys()
    for leaf in loop[0]:
        close(loop[0][leaf], ours[0][leaf], f"{name}: {leaf}")


@pytest.mark.parametrize("how", [{}, {"weight_decay": 0.1}, {"momentum": 0.9}, {"clip": 1.0}])
@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_steps_are_taken_by_the_layers(
    name: str, how: dict[str, float], products: list[torch.Size]
) -> None:
    """Two layers in every step; with momentum and for clipping gradients are needed."""
    method = methods.build({"name": name, "batch_size": 8, **how})
    loop, ours = begin(method, engine="loop"), begin(method)
    products.clear()  # of a first try whether the model can be stacked
    ours.step()
    apart = "momentum" in how or "clip" in how
    assert {shape[1:] for shape in products} == (set() if apart else {(8, 144), (5, 8)})
    loop.step()
    for leaf, true in loop.state()[0].items():
        close(true, ours.state()[0][leaf], leaf)


def test_only_the_weights_themselves_step() -> None:
    """What was computed from them passes its gradient on."""
    torch.manual_seed(0)
    w = torch.randn(2, 4, 3, dtype=torch.float64)
    x, g = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(2, 5, 4, dtype=torch.float64)
    leaf = w.clone().requires_grad_()
    with StepsInside({"w": leaf.detach()}) as inside:
        out = linear.Product.apply(x, 2 * leaf, None)
        (grad,) = torch.autograd.grad(out, leaf, g)
    inside.take()
    assert torch.equal(leaf, w) and not inside.names
    torch.testing.assert_close(grad, 2 * torch.bmm(g.transpose(1, 2), x))


def test_used_twice_it_steps_twice() -> None:
    torch.manual_seed(0)
    w = torch.randn(2, 3, 3, dtype=torch.float64)
    x = torch.randn(2, 5, 3, dtype=torch.float64)

    def twice(w: Tensor) -> Tensor:
        y = linear.Product.apply(linear.Product.apply(x, w, None).tanh(), w, None)
        return (y.square().sum() + w.square().sum()).reshape(())

    (true,) = torch.autograd.grad(twice(leaf := w.clone().requires_grad_()), leaf)
    ours = w.clone()
    with StepsInside({"w": ours}) as inside:
        leaf = ours.detach().requires_grad_()
        (rest,) = torch.autograd.grad(twice(leaf), leaf)
    assert torch.equal(ours, w) and inside.names == {"w"}  # nothing moves before
    inside.take()
    torch.testing.assert_close(rest, 2 * w)  # of the second term, which is no layer's
    torch.testing.assert_close(ours - rest, w - true)


def test_second_derivatives_go_through_the_gradient() -> None:
    w = torch.ones(1, 2, 2, dtype=torch.float64)
    with StepsInside({"w": w}) as inside:
        leaf = w.detach().requires_grad_()
        out = linear.Product.apply(torch.ones(1, 3, 2, dtype=torch.float64), leaf, None)
        (grad,) = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
    assert grad.requires_grad and not inside.names


@needs_triton
@pytest.mark.parametrize("places", [3, 20])
def test_a_convolution_steps_by_the_parts_of_its_gradient(
    places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our kernel adds up long sums in parts; they are subtracted one by one."""
    torch.manual_seed(0)
    x, w = torch.randn(2, 8, 3, places, places), torch.randn(2, 4, 3, 2, 2)
    how = ((1, 1), (0, 0), (1, 1))
    leaf = w.clone().requires_grad_()
    true_out = conv.Outputs.apply(x, leaf, None, how)
    g = torch.randn_like(true_out)
    (true,) = torch.autograd.grad(true_out, leaf, g)
    monkeypatch.setattr(conv, "_route", lambda map, args: "fused")
    parts: list[int] = []
    take_away = fused_steps().take_away

    def seen(w: Tensor, of: Tensor) -> None:
        parts.append(len(of))
        take_away(w, of)

    monkeypatch.setattr(fused_steps(), "take_away", seen)
    ours = w.clone()
    with StepsInside({"w": ours}) as inside:
        leaf = ours.detach().requires_grad_()
        out = conv.Outputs.apply(x, leaf, None, how)
        (none,) = torch.autograd.grad(out, leaf, g, allow_unused=True)
    assert none is None and inside.names == {"w"}
    inside.take()
    assert (parts[0] > 1) == (places == 20)
    torch.testing.assert_close(ours, w - true, rtol=1e-4, atol=1e-4)


@needs_triton
@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize(("channels", "wanted"), [(3, False), (18, False), (3, True)])
def test_a_convolution_that_pools_steps_by_windows(
    channels: int, wanted: bool, rectified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gradient is spread out over all places only where the inputs want theirs, too."""
    torch.manual_seed(0)
    x = torch.randn(2, 5, channels, 8, 9, requires_grad=wanted)
    w, bias = torch.randn(2, 5, channels, 3, 3), torch.randn(2, 5)
    how = ((1, 1), (1, 1), (1, 1))
    leaves = [v.clone().requires_grad_() for v in (w, bias)]
    true_out = pooled_conv.PooledOutputs.apply(x, *leaves, how, rectified)[0]
    g = torch.randn_like(true_out)
    inputs = [x] if wanted else []
    true = torch.autograd.grad(true_out, [*leaves, *inputs], g)
    monkeypatch.setattr(conv, "_route", lambda map, args: "fused")
    monkeypatch.setattr(steps_inside, "pays", lambda g: True)
    spread: list[bool] = []
    back = pooled_conv.Back.apply
    monkeypatch.setattr(pooled_conv.Back, "apply", lambda *a: spread.append(True) or back(*a))
    ours = w.clone(), bias.clone()
    with StepsInside({"w": ours[0], "bias": ours[1]}) as inside:
        leaves = [v.detach().requires_grad_() for v in ours]
        out = pooled_conv.PooledOutputs.apply(x, *leaves, how, rectified)[0]
        found = torch.autograd.grad(out, [*leaves, *inputs], g, allow_unused=True)
    assert found[:2] == (None, None) and inside.names == {"w", "bias"}
    assert bool(spread) == wanted
    inside.take()
    near = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(ours[0], w - true[0], **near)
    torch.testing.assert_close(ours[1], bias - true[1], **near)
    torch.testing.assert_close(found[2:], true[2:], **near)


@needs_triton
@pytest.mark.parametrize("shape", [(2, 5, 3), (1, 300, 70), (3, 2, 129)])
def test_kernel_of_sums(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    g = torch.randn(shape)
    cut = torch.randint(0, 5, shape, dtype=torch.int8)
    steps = fused_steps()
    torch.testing.assert_close(steps.sums(g).sum(0), g.sum(1), rtol=1e-5, atol=1e-5)
    true = torch.where(cut < 4, g, 0).sum(1)
    torch.testing.assert_close(steps.sums(g, cut).sum(0), true, rtol=1e-5, atol=1e-5)
    assert (len(steps.sums(g)) > 1) == (shape[1] == 300)
