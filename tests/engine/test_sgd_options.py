"""Options of local SGD: `after` each mini-batch, `most` of an epoch, and the count of steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from idiolect import methods
from idiolect.core.method import cross_entropy
from idiolect.engine import cuda_graphs as graphs
from tests.conftest import ENGINES, SmallNet, ragged_federation, simulation
from tests.engine.engines import local_of, stacked
from tests.methods.plain import START

SIZES = (24, 30, 7, 40, 33, 17, 65)
BATCH = 8
PER_EPOCH = [3, 4, 1, 5, 5, 3, 9]


def count_after(params: dict[str, Tensor], by: Tensor) -> dict[str, Tensor]:
    return {"count": params["count"] + by, "shadow": params["head.bias"] * 1}


def with_extra(net: Any, params: Any, x: Tensor, y: Tensor, by: Tensor) -> Tensor:
    return cross_entropy(net, params, x, y)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("program", [False, True])
def test_after_runs_once_for_each_mini_batch_of_each_client(
    engine: str, norm: bool, program: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if program and engine == "loop":
        pytest.skip("programs are the stacked engine's")
    monkeypatch.setattr(graphs, "MIN_STEPS_TO_CAPTURE", 1)
    sim = simulation(
        methods.build("fedavg"), ragged_federation(SIZES), SmallNet(norm=norm), engine=engine
    )
    if program:
        sim.engine.captured_steps = graphs.CapturedSteps(sim.engine.samples)  # type: ignore[attr-defined]
    counts, moved = [], []
    for group in sim.engine.groups(range(7)):
        local, k = sim.engine.local(group, 0), len(group)
        params = {n: v.expand(k, *v.shape) for n, v in sim.start_tree.items()}
        params |= {
            "count": torch.zeros(k).double(),
            "shadow": torch.zeros_like(params["head.bias"]),
        }
        by = torch.tensor([float(i + 1) for i in group]).double()
        how: dict[str, Any] = {"epochs": 2, "batch_size": BATCH, "repeat": 3, "lr": 0.1}
        ran = local.sgd(with_extra, params, after=count_after, extra=(by,), **how)
        done = ran.params
        counts += (done["count"] / by).tolist()
        moved.append((done["shadow"] - done["head.bias"]).abs().max())
        assert ran.steps.tolist() == [6 * expected(i, norm) for i in group]
    assert counts == [2 * expected(i, norm) for i in range(7)]
    assert max(moved) == 0  # it sees the leaves as the last of the repeated steps left them


def expected(client: int, norm: bool) -> int:
    """A last batch of one sample joins the one before where BatchNorm needs two."""
    alone = norm and SIZES[client] > BATCH and SIZES[client] % BATCH == 1
    return PER_EPOCH[client] - int(alone)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("most", [1, 4, 100])
def test_most_caps_the_epochs(engine: str, most: int) -> None:
    sim = simulation(methods.build("fedavg"), ragged_federation(SIZES), SmallNet(), engine=engine)
    for group in sim.engine.groups(range(7)):
        local = sim.engine.local(group, 0)
        params = {n: v.expand(len(group), *v.shape) for n, v in sim.start_tree.items()}
        done = local.sgd(cross_entropy, params, lr=0.1, batch_size=BATCH, most=most)
        assert done.steps.tolist() == [min(most, PER_EPOCH[i]) for i in group]


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("name", ["fedprox", "scaffold", "ditto", "apfl", "pfedme", "per_fedavg"])
def test_programs_equal_the_loop(name: str, norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that are done keep every leaf, also of trees that hold two models."""
    monkeypatch.setattr(graphs, "MIN_STEPS_TO_CAPTURE", 1)
    federation, model = ragged_federation(SIZES), SmallNet(norm=norm)
    method = methods.build({"name": name, "lr": 0.1, "batch_size": BATCH, "momentum": 0.5})
    ends = {}
    for engine in ENGINES:
        sim = simulation(method, federation, model, 2, engine=engine, participation=0.7)
        if engine == "stacked":
            sim.engine.captured_steps = graphs.CapturedSteps(sim.engine.samples)  # type: ignore[attr-defined]
        for _ in range(2):
            sim.step()
        ends[engine] = sim.state()[0]
    for leaf, value in ends["loop"].items():
        if value.numel() and not leaf.startswith("metrics"):
            torch.testing.assert_close(ends["stacked"][leaf], value, rtol=1e-9, atol=1e-11)


def doubled(params: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"count": params["count"] * 2}


def squared(params: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"count": params["count"] ** 2}


def test_a_program_belongs_to_one_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MIN_STEPS_TO_CAPTURE", 1)
    sim = simulation(methods.build("fedavg"), ragged_federation((9, 17)), SmallNet())
    sim.engine.captured_steps = graphs.CapturedSteps(sim.engine.samples)  # type: ignore[attr-defined]
    params = {n: v.expand(2, *v.shape) for n, v in sim.start_tree.items()}
    params["count"] = torch.full((2,), 3.0).double()
    how: dict[str, Any] = {"lr": 0.1, "batch_size": BATCH}
    for after, expected in ((doubled, [12.0, 24.0]), (squared, [81.0, 6561.0])):
        done = sim.engine.local([0, 1], 0).sgd(cross_entropy, params, after=after, **how)
        assert done.params["count"].tolist() == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_statistics_never_move_by_a_gradient(engine: str) -> None:
    """A part may be named whole: its statistics change by the forward pass alone."""
    sim = simulation(
        methods.build("fedavg"), ragged_federation(), SmallNet(norm=True), engine=engine
    )
    net, local = sim.engine.net, sim.engine.local([0], 0)
    params = {n: v[None] for n, v in sim.start_tree.items()}
    assert set(net.stats) & set(net.body)
    whole = local.sgd(cross_entropy, params, lr=0.1, weight_decay=0.5, train=net.body).params
    weights = [n for n in net.weights if n in net.body]
    named = local.sgd(cross_entropy, params, lr=0.1, weight_decay=0.5, train=weights).params
    assert all(torch.equal(whole[n], named[n]) for n in params)
    assert set(local.grad(cross_entropy, params, train=net.body)[0]) == set(weights)
    still = local.sgd(cross_entropy, params, lr=0.1, train=net.stats).params
    assert all(torch.equal(still[n], params[n]) for n in params)


@pytest.mark.parametrize("engine", ENGINES)
def test_one_start_for_all(engine: str) -> None:
    sim = simulation(methods.build("fedavg"), ragged_federation(), SmallNet(), engine=engine)
    ids = next(iter(sim.engine.groups(range(5))))
    local, k = sim.engine.local(ids, 0), len(ids)
    params = {n: v.expand(k, *v.shape) for n, v in sim.start_tree.items()}
    how: dict[str, Any] = {"lr": 0.1, "steps": 2, "batch_size": BATCH}
    one = local.sgd(cross_entropy, params, start=3, **how).params
    each = local.sgd(cross_entropy, params, start=torch.full((k,), 3), **how).params
    other = local.sgd(cross_entropy, params, start=4, **how).params
    assert all(torch.equal(one[n], each[n]) for n in params)
    assert not torch.equal(one["head.bias"], other["head.bias"])


@pytest.mark.parametrize("engine", ENGINES)
def test_only_some_train(engine: str) -> None:
    """The others keep their models and what their optimizers remember; nothing is counted."""
    ids, trains = ([0, 2], [True, False]) if engine == "stacked" else ([2], [False])
    local, only = local_of(engine, ids), torch.tensor(trains)
    start = stacked(START, len(ids))
    how: dict[str, Any] = {"lr": 0.1, "momentum": 0.5, "batch_size": 4, "keep": True}
    first = local.sgd(cross_entropy, start, **how)
    before = {n: v.clone() for n, v in first.memory.items()}
    counted = local.samples_seen.copy(), local.steps_taken.copy()
    local.remembered, local._calls = local.kept, {}
    done = local.sgd(cross_entropy, first.params, only=only, **how)
    assert all(torch.equal(v[-1], first.params[n][-1]) for n, v in done.params.items())
    assert all(torch.equal(v[-1], before[n][-1]) for n, v in done.memory.items())
    assert (local.samples_seen[-1], local.steps_taken[-1]) == (counted[0][-1], counted[1][-1])
    if engine == "stacked":
        assert not torch.equal(done.params["head.bias"][0], first.params["head.bias"][0])
        assert local.samples_seen[0] == 2 * counted[0][0]
