"""Activations that write into what they are given: a convolution's outputs are a view of what its
map returns, and PyTorch forbids to write there."""

from __future__ import annotations

import warnings
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from idiolect import methods
from idiolect.engine import layers
from idiolect.engine.layers import conv
from idiolect.models import adapters
from tests.conftest import run
from tests.engine.engines import LOCAL, RAGGED, assert_agree

ACTIVATIONS = [
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.SiLU, nn.Mish),
    *(nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.RReLU),
]


@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_behind_a_convolution_of_one_client(
    kind: type[nn.Module], planes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when one client is left on a GPU."""
    monkeypatch.setattr(conv, "in_transform", lambda: True)
    plain = nn.Sequential(nn.Conv2d(2, 4, 3), kind(inplace=True)).double().eval()
    ours = deepcopy(plain)
    layers.install(ours, torch.device("cuda"))
    if planes:
        layers.lay_by_planes(ours)
    x, found = torch.randn(3, 2, 6, 6, dtype=torch.float64), []
    for net in (plain, ours):
        y = net(x)
        found.append([y, *torch.autograd.grad(y.square().sum(), list(net.parameters()))])
    for true, one in zip(*found, strict=True):
        torch.testing.assert_close(one, true)


def test_networks_with_them_are_stacked() -> None:
    """On a CPU too, without a word; the model of the user stays as it is."""
    torch.manual_seed(0)
    body = nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 3, 3), nn.SiLU(inplace=True)
    net = nn.Sequential(*body, nn.Flatten(), nn.Linear(3 * 64, 5)).double()
    method = methods.build(LOCAL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = run(method, RAGGED, net, 2, engine="stacked")
    assert ours.engine.name == "stacked"
    assert_agree(run(method, RAGGED, net, 2, engine="loop"), ours)
    assert net[1].inplace and net[3].inplace


class Writing(nn.Module):
    """Writes into what its layers give, by functions and operators."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 3, 3, padding=1)
        self.head = nn.Linear(300, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.second(functional.relu(self.first(x), inplace=True))
        h += 1
        out: torch.Tensor = self.head(h.mul_(2).relu_().flatten(1))
        out -= out.mean()
        return out


@pytest.mark.parametrize("route", ["each", "grouped"])
def test_a_network_may_write_into_the_outputs_of_one_client(
    route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when one client is left on a GPU."""
    monkeypatch.setattr(conv, "in_transform", lambda: True)
    monkeypatch.setattr(conv, "_route", lambda *given: route)
    plain = Writing().double()
    ours = deepcopy(plain)
    layers.install(ours, torch.device("cuda"))
    x, found = torch.randn(3, 1, 12, 12, dtype=torch.float64), []
    for net in (plain, ours):
        y = net(x)
        found.append([y, *torch.autograd.grad(y.square().sum(), list(net.parameters()))])
    for true, one in zip(*found, strict=True):
        torch.testing.assert_close(one, true)


@pytest.mark.parametrize("adapt", [None, "lora:2,head"])
def test_networks_that_write_into_outputs_are_stacked(adapt: str | None) -> None:
    torch.manual_seed(0)
    net = Writing().double()
    if adapt:
        net = adapters.adapted(net, adapt)
    method = methods.build(LOCAL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = run(method, RAGGED, net, 2, engine="stacked")
    assert ours.engine.name == "stacked"
    assert_agree(run(method, RAGGED, net, 2, engine="loop"), ours)


class Ignoring(nn.Module):
    """Leaves what an activation returns: it counts on its own values having changed."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.bend = nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True)
        self.head = nn.Linear(400, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        self.bend(h)
        out: torch.Tensor = self.head(h.flatten(1))
        return out


def test_a_network_that_counts_on_the_writing_is_noticed() -> None:
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="other values in a stack"):
        sim = run(methods.build(LOCAL), RAGGED, Ignoring().double(), 1, engine="stacked")
    assert sim.engine.name == "loop"
