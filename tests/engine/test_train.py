"""Gradients, SGD and squared gradients of both engines, against plain PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idiolect.core import tree
from idiolect.core.batches import BatchPlan
from idiolect.core.local import Rows
from idiolect.core.method import cross_entropy
from idiolect.core.net import Net
from idiolect.core.task import CLASSIFICATION
from idiolect.core.tree import Tree
from tests.conftest import ENGINES
from tests.engine.engines import local_of, stacked
from tests.methods.plain import (
    CLIENTS,
    START,
    assert_same,
    batches,
    gradient,
    loss,
    model_with,
    seeded,
    sgd,
    vector,
)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("training", [False, True])
def test_grad(engine: str, training: bool) -> None:
    ids = [1] if engine == "loop" else [3, 1, 2]
    g, value, _ = local_of(engine, ids).grad(
        cross_entropy, stacked(START, len(ids)), training=training
    )
    for k, i in enumerate(ids):
        assert_same(tree.client(g, k), gradient(START, CLIENTS[i]), 1e-13)
        assert value[k].item() == pytest.approx(loss(START, CLIENTS[i]), rel=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_grad_of_some_leaves(engine: str) -> None:
    g, _, _ = local_of(engine, [1]).grad(cross_entropy, stacked(START, 1), train=("head.bias",))
    assert list(g) == ["head.bias"]
    assert_same(tree.client(g, 0), {"head.bias": gradient(START, CLIENTS[1])["head.bias"]}, 1e-13)


class Spare(nn.Module):
    """Has a layer that its forward never uses."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(2, 2)
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        return out


@pytest.mark.parametrize("engine", ENGINES)
def test_layers_that_are_never_used_stay(engine: str) -> None:
    net = seeded(Spare)
    params = stacked(dict(net.state_dict()), 1)
    local = local_of(engine, [1], net)
    g, _, _ = local.grad(cross_entropy, params)
    assert float(g["spare.weight"].abs().max()) == 0
    assert float(g["head.weight"].abs().max()) > 0
    moved = local.sgd(cross_entropy, params, lr=0.1, batch_size=4, weight_decay=0.5).params
    assert torch.equal(moved["spare.weight"], params["spare.weight"])


@pytest.mark.parametrize("engine", ENGINES)
def test_sgd_of_some_leaves(engine: str) -> None:
    moved = (
        local_of(engine, [1])
        .sgd(cross_entropy, stacked(START, 1), lr=0.2, batch_size="full", train=("head.bias",))
        .params
    )
    expected = sgd(START, CLIENTS[1], lr=0.2, only=("head.bias",))
    assert_same(tree.client(moved, 0), expected, 1e-13)


@pytest.mark.parametrize("engine", ENGINES)
def test_step_size_per_client(engine: str) -> None:
    ids = [2] if engine == "loop" else [2, 0, 3]
    rates = torch.tensor([0.3, 0.1, 0.0][: len(ids)], dtype=torch.float64)
    moved = (
        local_of(engine, ids)
        .sgd(cross_entropy, stacked(START, len(ids)), lr=rates, batch_size="full")
        .params
    )
    for k, i in enumerate(ids):
        assert_same(tree.client(moved, k), sgd(START, CLIENTS[i], lr=float(rates[k])), 1e-13)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("per_sample", [False, True])
def test_squared_grad(engine: str, per_sample: bool) -> None:
    ids = [1] if engine == "loop" else [3, 1, 2]
    total, count = local_of(engine, ids).squared_grad(
        cross_entropy, stacked(START, len(ids)), batch_size=4, per_sample=per_sample
    )
    for k, i in enumerate(ids):
        rows = batches(len(CLIENTS[i]), 1 if per_sample else 4)
        squares = [float(vector(gradient(START, CLIENTS[i], b)).square().sum()) for b in rows]
        assert total[k].item() == pytest.approx(sum(squares), rel=1e-12)
        assert count[k].item() == len(rows)


def weighted(net: Net, params: Tree, x: Tensor, y: Tensor, w: Tensor, pull: Tree) -> Tensor:
    """A loss with a value per sample, and a tree per client."""
    far = (params["head.bias"] - pull["b"]).square().sum()
    return w * F.cross_entropy(net(params, x), y, reduction="none") + far


@pytest.mark.parametrize("engine", ENGINES)
def test_extra_arguments(engine: str) -> None:
    ids = [1] if engine == "loop" else [3, 1, 2]
    w = [torch.linspace(0.5, 2, len(CLIENTS[i]), dtype=torch.float64) for i in ids]
    pull = torch.arange(3.0 * len(ids), dtype=torch.float64).reshape(len(ids), 3)
    moved = (
        local_of(engine, ids)
        .sgd(
            weighted,
            stacked(START, len(ids)),
            lr=0.1,
            batch_size=4,
            order="fixed",
            extra=(Rows(torch.cat(w)), {"b": pull}),
        )
        .params
    )
    for k, i in enumerate(ids):
        client = CLIENTS[i]
        model = model_with(START)
        for b in batches(len(client), 4):
            model.zero_grad()
            each = F.cross_entropy(model(client.x[b]), client.y[b], reduction="none")
            far = (model.head.bias - pull[k]).square().sum()
            ((w[k][b] * each).mean() + far).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
        assert_same(tree.client(moved, k), dict(model.state_dict()), 1e-13)


def pairwise(net: Net, params: Tree, x: Tensor, y: Tensor) -> Tensor:
    """Ties the samples of a batch together."""
    h = net(params, x)
    return (h[:, None] - h[None, :]).square().mean()


@pytest.mark.parametrize("engine", ENGINES)
def test_coupled_loss(engine: str) -> None:
    ids = [1] if engine == "loop" else [3, 1, 2]
    moved = (
        local_of(engine, ids)
        .sgd(pairwise, stacked(START, len(ids)), lr=0.1, batch_size=4, order="fixed", coupled=True)
        .params
    )
    for k, i in enumerate(ids):
        model = model_with(START)
        for b in batches(len(CLIENTS[i]), 4):
            model.zero_grad()
            h = model(CLIENTS[i].x[b])
            (h[:, None] - h[None, :]).square().mean().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
        assert_same(tree.client(moved, k), dict(model.state_dict()), 1e-13)


def scalar(net: Net, params: Tree, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net(params, x), y)


def matrix(net: Net, params: Tree, x: Tensor, y: Tensor) -> Tensor:
    return net(params, x).square()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("wrong", "coupled"), [(scalar, False), (matrix, False), (cross_entropy, True)]
)
def test_a_loss_of_the_wrong_shape(wrong: Any, coupled: bool, engine: str) -> None:
    with pytest.raises(TypeError, match="one value per sample, or a scalar"):
        local_of(engine, [1]).sgd(wrong, stacked(START, 1), lr=0.1, batch_size=4, coupled=coupled)


def test_the_usual_loss_has_the_bits_of_pytorchs() -> None:
    logits = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 4, 2, 2, 1, 3])
    ours = CLASSIFICATION.loss(logits, y)
    plain = torch.nn.functional.cross_entropy(logits, y, reduction="none")
    assert torch.equal(ours, plain)
    weight = torch.rand(6, dtype=torch.float64)
    mine, theirs = (torch.autograd.grad(v @ weight, logits)[0] for v in (ours, plain))
    assert torch.equal(mine, theirs)


def test_steps_of_a_client_alone_are_those_of_a_stack() -> None:
    local: Any = local_of("stacked", [0])
    steps = local._steps(BatchPlan(batch_size=4, epochs=2), start=[0])
    cut, together = list(steps), [s for t in range(steps.count) for s in steps.at_step(t)]
    assert len(cut) == len(together) == steps.count
    assert len({step.at.shape for step in cut}) == 2  # a last batch has fewer samples
    for one, other in zip(cut, together, strict=True):
        assert one.who == other.who and one.weight is other.weight is None
        for name in ("at", "sample", "y", "size"):
            assert torch.equal(getattr(one, name), getattr(other, name))
