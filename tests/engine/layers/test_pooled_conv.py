"""Convolutions that pool and rectify, where what they are given is unusual. Our GPU kernels run in
Triton's interpreter."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from idiolect.core.method import cross_entropy
from idiolect.data import Federation
from idiolect.engine import layers, stacked
from idiolect.engine.layers import conv, pooled_conv, steps_inside
from idiolect.engine.layers.stack_function import fused, fused_steps
from idiolect.engine.layers.steps_inside import StepsInside
from idiolect.engine.loop import LoopEngine
from idiolect.engine.stacked import StackedEngine
from tests.engine.layers.test_layers import needs_triton

ONES = ((1, 1), (1, 1), (1, 1))


def pooling() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))


def as_on_a_gpu(plain: nn.Sequential) -> nn.Sequential:
    ours = deepcopy(plain)
    layers.install(ours, torch.device("cuda"))
    assert type(ours[0]) is pooled_conv.PooledConv2d
    return ours


@needs_triton
def test_a_bias_may_be_the_same_for_all() -> None:
    """Where a bias is frozen, or samples are clients, all of the stack share its memory."""
    plain, bias = pooling(), torch.randn(3)
    x, w = torch.randn(3, 4, 2, 8, 8), torch.randn(3, 3, 2, 3, 3)
    true, ours = (
        vmap(lambda w, x, m=m: functional_call(m, {"0.weight": w, "0.bias": bias}, (x,)))(w, x)
        for m in (plain, as_on_a_gpu(plain))
    )
    torch.testing.assert_close(ours, true, rtol=1e-4, atol=1e-4)
    shared = bias[None].expand(3, 3)
    found, true = (r.outputs(x, w, shared, ONES) for r in (conv.Fused, conv.Each))
    torch.testing.assert_close(found, true, rtol=1e-4, atol=1e-4)


@needs_triton
def test_squared_gradients_of_single_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedAS' trace: the samples of a client that is left alone become a stack of their own."""
    install = layers.install
    there = torch.device("cuda")
    monkeypatch.setattr(stacked.layers, "install", lambda module, _: install(module, there))
    clients = []
    for n in (5, 20, 3):
        x, y = torch.randn(n, 2, 8, 8), torch.randint(0, 3, (n,))
        clients.append({"x_train": x, "y_train": y, "x_test": x, "y_test": y})
    federation = Federation.from_arrays(clients, classes=3)
    net = nn.Sequential(*pooling(), nn.Flatten(), nn.Linear(48, 3))
    start = {n: v.detach()[None].expand(3, *v.shape).clone() for n, v in net.named_parameters()}
    given = {"seed": 0, "device": torch.device("cpu"), "dtype": torch.float32}
    loop, ours = LoopEngine(federation, net, **given), StackedEngine(federation, net, **given)
    assert type(ours.net.module[0]) is pooled_conv.PooledConv2d  # type: ignore[index]
    together = ours.local([0, 1, 2], 0)
    found = together.squared_grad(cross_entropy, start, per_sample=True)[0]
    for i in range(3):
        own = {n: v[[i]] for n, v in start.items()}
        true = loop.local([i], 0).squared_grad(cross_entropy, own, per_sample=True)[0]
        torch.testing.assert_close(found[[i]], true, rtol=1e-4, atol=1e-4)


@needs_triton
@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_sample_without_a_batch_axis(rectified: bool, dtype: torch.dtype) -> None:
    """It is pooled once."""
    plain = pooling().to(dtype)
    plain = plain if rectified else nn.Sequential(plain[0], plain[2])
    x: Tensor = torch.randn(2, 8, 8, dtype=dtype)
    torch.testing.assert_close(as_on_a_gpu(plain)(x), plain(x), rtol=1e-4, atol=1e-4)


def empty(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta")


@needs_triton
def test_more_values_than_32_bits_count_are_not_for_our_kernels() -> None:
    """Of one client, in any of the images: the offsets in the kernels would overflow."""
    w, size = empty(1, 64, 3, 3, 3), torch.Size((128, 128))
    outputs = 2**31 // (64 * 128 * 128)  # samples, until the outputs are too many
    for batch, few in ((outputs - 1, True), (outputs, False), (22 * outputs, False)):
        x, g = empty(1, batch, 3, 128, 128), empty(1, batch, 64, 128, 128)
        for map, *given in (
            ("outputs", x, w, None, ONES),
            ("to_inputs", g, w, size, ONES),
            ("to_weights", x, g, torch.Size((3, 3)), ONES),
        ):
            found = conv.candidates(map, tuple(given))
            assert ("fused" in found) == few and found, (map, batch)
    x, g = empty(9, 1000, 300, 100, 100), empty(9, 1000, 3, 100, 100)  # too many inputs
    assert conv.candidates("to_weights", (x, g, size, ONES)) == ["grouped"]


@needs_triton
@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize(("limit", "most"), [("MAX_VALUES", 4 * 2 * 64 - 1), ("MAX_CLIENTS", 1)])
def test_what_is_too_much_for_a_kernel_is_done_apart(
    limit: str, most: int, rectified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same values and derivatives, also where steps are taken inside; no kernel of ours that
    counts clients or values is called."""
    x, w, bias = torch.randn(2, 4, 2, 8, 8), torch.randn(2, 3, 2, 3, 3), torch.randn(2, 3)

    def found() -> list[Tensor]:
        ours = w.clone(), bias.clone()
        with StepsInside({"w": ours[0], "bias": ours[1]}) as inside:
            leaves = [v.detach().requires_grad_() for v in ours]
            out = pooled_conv.PooledOutputs.apply(x, *leaves, ONES, rectified)
            given = torch.autograd.grad(out[0].square().sum(), leaves, allow_unused=True)
        inside.take()
        assert (given[0] is None) == (limit not in told)
        ends = [v if g is None else v - g for v, g in zip(ours, given, strict=True)]
        return [*(v.detach() for v in out), *ends]

    told: set[str] = set()
    true = found()
    monkeypatch.setattr(conv, limit, most)
    told.add(limit)
    for kernel in ("_outputs", "_to_weights"):
        monkeypatch.delattr(fused(), kernel)
    for one, other in zip(found(), true, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@needs_triton
def test_sums_of_more_clients_than_a_grid_is_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_inside, "pays", lambda g: True)
    monkeypatch.delattr(fused_steps(), "_sums")
    bias, g = torch.zeros(2**16, 2), torch.randn(2**16, 1, 1, 1, 2).movedim(-1, 2)
    with StepsInside({"bias": bias}) as inside, torch.no_grad():
        assert steps_inside.takes_sum(inside, bias, g)
    inside.take()
    assert torch.equal(bias, -g.flatten(1))
