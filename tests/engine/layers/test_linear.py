"""Linear layers on a CPU whose float32 products come from oneDNN."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from idiolect.engine import layers
from idiolect.engine.layers import linear

Tree = dict[str, Tensor]

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN"
)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """As on a CPU where oneDNN is faster, for products of every size; the shapes it was asked."""
    asked: list[tuple[int, ...]] = []
    onednn = linear._onednn

    def noted(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        asked.append((*x.shape, len(w)))
        return onednn(x, w, bias)

    monkeypatch.setattr(layers, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(linear, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(linear, "MIN_PRODUCTS_FOR_ONEDNN", 1)
    monkeypatch.setattr(linear, "_onednn", noted)
    return asked


def networks() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3, bias=False))
    ours = deepcopy(plain)
    layers.install(ours, torch.device("cpu"))
    assert {type(m) for m in ours} == {linear.StackedLinear, nn.Tanh}
    return plain, ours


def loss(module: nn.Module, params: Tree, x: Tensor) -> Tensor:
    return functional_call(module, params, (x,)).square().sum()


def ahead(module: nn.Module, params: Tree, x: Tensor) -> Tensor:
    """A step, and the loss behind it: its gradient has second derivatives."""
    g = grad(lambda p: loss(module, p, x))(params)
    return loss(module, {n: params[n] - 0.1 * g[n] for n in params}, x)


def of_samples(module: nn.Module, params: Tree, x: Tensor) -> Tensor:
    """The squared gradient of every sample."""

    def one(row: Tensor) -> Tensor:
        g = grad(lambda p: loss(module, p, row[None]))(params)
        return torch.stack([v.square().sum() for v in g.values()]).sum()

    return vmap(one)(x).sum()


@pytest.mark.parametrize("fn", [loss, ahead, of_samples])
@pytest.mark.parametrize("clients", [1, 3])
def test_values_and_derivatives_are_pytorchs(fn, clients: int, products: list) -> None:
    plain, ours = networks()
    x = torch.randn(clients, 4, 6)
    start = {n: torch.randn(clients, *p.shape) / 2 for n, p in plain.named_parameters()}
    found = []
    for module in (plain, ours):
        leaf = {n: v.clone().requires_grad_() for n, v in start.items()}
        value = vmap(lambda p, a, m=module: fn(m, p, a))(leaf, x)
        found.append([value, *torch.autograd.grad(value.sum(), list(leaf.values()))])
    assert products
    for true, got in zip(*found, strict=True):
        torch.testing.assert_close(got, true, rtol=1e-4, atol=1e-5)


def test_a_client_alone_has_pytorchs_derivatives_too(products: list) -> None:
    plain, ours = networks()
    x = torch.randn(4, 6)
    found = []
    for module in (plain, ours):
        weights = [p.requires_grad_() for p in module.parameters()]
        first = torch.autograd.grad(module(x).square().sum(), weights, create_graph=True)
        length = torch.stack([g.square().sum() for g in first]).sum()
        found.append([*first, *torch.autograd.grad(length, weights)])
    assert (4, 6, 5) in products
    for true, got in zip(*found, strict=True):
        torch.testing.assert_close(got, true, rtol=1e-4, atol=1e-5)


def test_other_types_and_small_products_are_left_to_pytorch(
    products: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ours = networks()
    ours.double()(torch.randn(4, 6).double())
    monkeypatch.setattr(linear, "MIN_PRODUCTS_FOR_ONEDNN", 1000)
    ours.float()(torch.randn(4, 6))
    assert not products


def test_no_samples_give_no_outputs(products: list) -> None:
    _, ours = networks()
    assert ours(torch.randn(0, 6)).shape == (0, 3)
