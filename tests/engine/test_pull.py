"""A pull to fixed leaves: by formula in the step, the same as its gradient by autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from idiolect.core.local import Trained
from idiolect.core.method import cross_entropy
from idiolect.core.tree import Tree
from idiolect.engine import cuda_graphs as graphs
from tests.conftest import ENGINES
from tests.engine.test_optimizers import HOW, SIZES, begin
from tests.test_every_method import close


def proximal(net: Any, params: Tree, x: Tensor, y: Tensor, anchor: Tree, by: Tensor) -> Tensor:
    """The loss with the pull written out."""
    gap = torch.stack([(params[n] - anchor[n]).square().sum() for n in anchor]).sum()
    return cross_entropy(net, params, x, y) + 0.5 * by * gap


def trained(engine: str, by_formula: bool, leaves: Any = None, **how: Any) -> list[Trained]:
    sim = begin("fedavg", {}, engine)
    done = []
    for group in sim.engine.groups(range(len(SIZES))):
        start = {n: v.expand(len(group), *v.shape) for n, v in sim.start_tree.items()}
        anchor = {
            n: 0.5 * v + 0.1 for n, v in start.items() if n in (leaves or sim.engine.net.weights)
        }
        pull = anchor, torch.tensor([0.3 + i for i in group], dtype=torch.float64)
        given: dict[str, Any] = {"extra": pull}
        if by_formula:
            given = {"pull": pull}
        loss = cross_entropy if by_formula else proximal
        local = sim.engine.local(group, 0)
        done.append(local.sgd(loss, start, lr=0.1, epochs=2, batch_size=8, **given, **how))
    return done


@pytest.mark.parametrize("engine", [*ENGINES, "captured"])
@pytest.mark.parametrize("name", HOW)
def test_pull_is_the_gradient_of_the_squared_distance(
    engine: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MIN_STEPS_TO_CAPTURE", 1)
    how = {k: v for k, v in HOW[name].items() if k != "lr"} | {"repeat": 2}
    pairs = zip(trained(engine, True, **how), trained(engine, False, **how), strict=True)
    for ours, true in pairs:
        for leaf in true.params:
            close(true.params[leaf], ours.params[leaf], leaf)


@pytest.mark.parametrize("engine", ENGINES)
def test_only_leaves_that_move_and_have_an_anchor_are_pulled(engine: str) -> None:
    """The loss does not depend on the frozen leaves, nor they on the pull."""
    sim = begin("fedavg", {}, engine)
    head, body = (
        sim.engine.net.head,
        [n for n in sim.engine.net.weights if n not in sim.engine.net.head],
    )
    every = [one.params for one in trained(engine, True, train=head)]
    only = [one.params for one in trained(engine, True, leaves=head, train=head)]
    for a, b in zip(every, only, strict=True):
        for leaf in a:
            assert torch.equal(a[leaf], b[leaf])
            assert (leaf in body) == torch.equal(a[leaf][0], sim.start_tree[leaf])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_pulled_leaf_that_the_loss_does_not_use_moves(engine: str) -> None:
    sim = begin("fedavg", {}, engine)
    for group in sim.engine.groups(range(len(SIZES))):
        start = {n: v.expand(len(group), *v.shape) for n, v in sim.start_tree.items()}
        start["alone"] = torch.ones(len(group), dtype=torch.float64)
        pull = {"alone": 0 * start["alone"]}, torch.ones(len(group), dtype=torch.float64)
        local, how = sim.engine.local(group, 0), {"lr": 0.1, "steps": 3, "batch_size": 8}
        done = local.sgd(cross_entropy, start, pull=pull, train=start, **how).params
        torch.testing.assert_close(done["alone"], 0.9**3 * start["alone"])


@pytest.mark.parametrize("engine", ENGINES)
def test_the_loss_that_is_told_is_that_of_the_samples(engine: str) -> None:
    """With a step of nothing FedProx's second round sees what FedAvg's sees."""
    losses = []
    for name in ("fedavg", "fedprox"):
        sim = begin(name, {"lr": 1e-9}, engine)
        losses.append([sim.step().train_loss for _ in range(2)])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_strong_pull_is_not_told(engine: str) -> None:
    of_samples, with_pull = (trained(engine, by_formula)[0].loss for by_formula in (True, False))
    assert (with_pull > of_samples + 1).all()
