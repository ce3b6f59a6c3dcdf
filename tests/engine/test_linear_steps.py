"""Linear layers that take their step of SGD inside the product that would be its gradient: on a GPU
they do, here they are made to on a CPU. The numbers must not move."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from idiolect import methods
from idiolect.engine import layers, stacked
from idiolect.engine.layers import linear
from idiolect.engine.layers.linear import Descent, Linear

from ..test_every_method import METHODS, begin, close, finish


@pytest.fixture(autouse=True)
def _single(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Shapes of the weights that stepped so."""
    seen: list[torch.Size] = []

    def install(module: Any, device: Any) -> None:
        for layer in module.modules():
            if Linear.replaces(layer):
                layer.__class__ = Linear

    def step(w: Tensor, g: Tensor, x: Tensor) -> None:
        seen.append(w.shape)
        linear.plain_step(w, g, x)

    monkeypatch.setattr(stacked.layers, "install", install)
    monkeypatch.setattr(linear, "_step", step)
    assert layers.install is install
    return seen


@pytest.mark.parametrize("name", METHODS)
def test_every_method_ends_where_the_loop_does(name: str, products: list[torch.Size]) -> None:
    loop, ours = finish(begin(name, engine="loop")), finish(begin(name))
    assert loop[0].keys() == ours[0].keys()
    for leaf in loop[0]:
        close(loop[0][leaf], ours[0][leaf], f"{name}: {leaf}")


def test_plain_steps_are_taken_by_the_layers(products: list[torch.Size]) -> None:
    """Two layers in every step; with momentum gradients are needed."""
    for momentum in (0.0, 0.9):
        sim = begin(methods.build({"name": "fedavg", "batch_size": 8, "momentum": momentum}))
        products.clear()  # a first try whether the model can be stacked
        sim.step()
        assert {shape[1:] for shape in products} == (set() if momentum else {(8, 144), (5, 8)})


def test_not_in_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    w = torch.ones(1, 2, 3)
    assert Descent([w]).takes(w)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert not Descent([w]).takes(w)


def test_only_the_weights_themselves_step() -> None:
    """What was computed from them passes its gradient on."""
    torch.manual_seed(0)
    w = torch.randn(2, 4, 3, dtype=torch.float64)
    x, g = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(2, 5, 4, dtype=torch.float64)
    leaf = w.clone().requires_grad_()
    with Descent([leaf.detach()]):
        out = linear.Product.apply(x, 2 * leaf, None)
        (grad,) = torch.autograd.grad(out, leaf, g)
    assert torch.equal(leaf, w)
    torch.testing.assert_close(grad, 2 * torch.bmm(g.transpose(1, 2), x))


class Halved(torch.autograd.Function):
    """The same values, half the gradient."""

    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        return w.view_as(w)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g / 2


def test_a_gradient_of_its_own_is_respected() -> None:
    w = torch.ones(1, 2, 3)
    with Descent([w]):
        leaf = w.detach().requires_grad_()
        out = linear.Product.apply(torch.ones(1, 5, 3), Halved.apply(leaf), None)
        (grad,) = torch.autograd.grad(out.sum(), [leaf])
    assert grad.unique().tolist() == [2.5] and w.unique().tolist() == [1.0]


def test_saved_tensors_may_be_copies() -> None:
    """As under `torch.autograd.graph.save_on_cpu`."""
    w = torch.ones(1, 2, 3)
    with torch.autograd.graph.saved_tensors_hooks(Tensor.clone, Tensor.clone), Descent([w]):
        leaf = w.detach().requires_grad_()
        out = linear.Product.apply(torch.ones(1, 5, 3), leaf, None)
        torch.autograd.grad(out.sum(), [leaf], allow_unused=True)
    assert w.unique().tolist() == [-4.0]


def test_used_twice_it_steps_twice() -> None:
    torch.manual_seed(0)
    w = torch.randn(2, 3, 3, dtype=torch.float64)
    x = torch.randn(2, 5, 3, dtype=torch.float64)

    def twice(w: Tensor) -> Tensor:
        y = linear.Product.apply(linear.Product.apply(x, w, None).tanh(), w, None)
        return (y.square().sum() + w.square().sum()).reshape(())

    (true,) = torch.autograd.grad(twice(leaf := w.clone().requires_grad_()), leaf)
    ours = w.clone()
    with Descent([ours]):
        leaf = ours.detach().requires_grad_()
        (rest,) = torch.autograd.grad(twice(leaf), leaf)
    torch.testing.assert_close(rest, 2 * w)  # of the second term, which is no layer's
    torch.testing.assert_close(ours - rest, w - true)


def test_nothing_moves_after_an_error() -> None:
    w = torch.ones(1, 2, 2)
    with pytest.raises(RuntimeError, match="later"), Descent([w]):
        leaf = w.detach().requires_grad_()
        linear.Product.apply(torch.ones(1, 3, 2), leaf, None).sum().backward()
        raise RuntimeError("later")
    assert torch.equal(w, torch.ones(1, 2, 2))


def test_activations_are_gone_when_the_step_is_over() -> None:
    """The graph of a step holds its Descent, and must not be held by it: activations of all steps
    would wait for Python to look for circles."""
    gc.disable()
    try:
        w, v = torch.ones(1, 4, 3), torch.ones(1, 2, 4)
        with Descent([w, v]):
            leaves = [t.detach().requires_grad_() for t in (w, v)]
            hidden = linear.Product.apply(torch.ones(1, 5, 3), leaves[0], None)
            out = linear.Product.apply(hidden, leaves[1], None)
            torch.autograd.grad(out.sum(), leaves, allow_unused=True)
        assert w.unique().tolist() == [-9.0] and v.unique().tolist() == [-14.0]
        trace = weakref.ref(hidden)
        del hidden, out, leaves
        assert trace() is None
    finally:
        gc.enable()
