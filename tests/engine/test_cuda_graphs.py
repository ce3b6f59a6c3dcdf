"""The programs behind the CUDA graphs, run step by step on the CPU: the numbers must not move."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from idiolect import methods
from idiolect.bench.round_time import uneven
from idiolect.core.local import Rows
from idiolect.data import Federation
from idiolect.engine import cuda_graphs as graphs
from idiolect.engine.layers.norm import StackedBatchNorm2d
from idiolect.engine.steps import roomy
from idiolect.simulation.simulation import Simulation
from tests.conftest import SmallNet, ragged_federation, simulation

SIZES = (24, 30, 7, 40, 33, 17, 65)


def end_state(sim: Simulation, rounds: int) -> dict[str, torch.Tensor]:
    for _ in range(rounds):
        sim.step()
    return sim.state()[0]


@pytest.fixture(scope="module")
def federation() -> Federation:
    return ragged_federation(SIZES)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("name", ["fedavg", "fedas", "fedala", "fedfomo", "spfl", "lga"])
@pytest.mark.parametrize("more", [{}, {"momentum": 0.9, "weight_decay": 0.01, "lr_decay": 0.9}])
def test_equals_loop(
    name: str, norm: bool, more: dict[str, Any], federation: Federation, monkeypatch: Any
) -> None:
    monkeypatch.setattr(graphs, "MIN_STEPS_TO_CAPTURE", 1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = SmallNet(norm=norm)
    method = methods.build({"name": name, "lr": 0.1, "batch_size": 8, **more})
    ends = {}
    for engine in ("loop", "stacked"):
        sim = simulation(method, federation, model, 3, engine=engine, participation=0.7)
        if engine == "stacked":
            sim.engine.captured_steps = graphs.CapturedSteps(sim.engine.samples)  # type: ignore[attr-defined]
        ends[engine] = end_state(sim, 3)
        if engine == "stacked":
            assert sim.engine.captured_steps.captured  # type: ignore[attr-defined]
    for leaf, value in ends["loop"].items():
        if value.numel() and not leaf.startswith("metrics"):
            torch.testing.assert_close(ends["stacked"][leaf], value, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["fedavg", "fedas", "feddwa", "pflego"])
@pytest.mark.parametrize("clients", [0.3, 0.7])
def test_batch_norms_as_on_a_gpu(
    name: str, clients: float, federation: Federation, monkeypatch: Any
) -> None:
    """Last batches are filled up: no client takes a step by itself, whatever its size."""
    monkeypatch.setattr(graphs, "MIN_STEPS_TO_CAPTURE", 1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = SmallNet(norm=True)
    settings = {} if name == "pflego" else {"lr": 0.1, "batch_size": 8}
    method = methods.build({"name": name, **settings})
    ends = {}
    for kind in ("loop", "stacked"):
        sim = simulation(method, federation, model, 3, engine=kind, participation=clients)
        engine: Any = sim.engine
        if kind == "stacked":
            engine.train_net.module.body[1].__class__ = StackedBatchNorm2d
            engine.captured_steps = graphs.CapturedSteps(engine.samples)
        ends[kind] = end_state(sim, 3)
    assert engine.captured_steps.captured
    assert not any(step.exact for step in engine.captured_steps.captured)
    for leaf, value in ends["loop"].items():
        if value.numel() and not leaf.startswith("metrics"):
            torch.testing.assert_close(ends["stacked"][leaf], value, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["pflego", "fedrecon"])
def test_steps_on_what_clients_stored_are_captured(
    name: str, federation: Federation, monkeypatch: Any
) -> None:
    """One program serves all rounds, though cohorts have other samples each time."""
    monkeypatch.setattr(graphs, "MIN_STEPS_TO_CAPTURE", 1)
    sim = simulation(methods.build({"name": name}), federation, SmallNet(), 4, participation=0.7)
    engine: Any = sim.engine
    engine.captured_steps = graphs.CapturedSteps(engine.samples)
    counts = []
    for _ in range(4):
        sim.step()
        counts.append(len(engine.captured_steps.captured))
    states = [step.state for step in engine.captured_steps.captured]
    stored = [s for s in states if any(isinstance(e, Rows) for e in (*s.extra, s.x))]
    assert stored and counts[-1] == counts[-2]


@pytest.mark.parametrize(("seeds", "most"), [(1, 0.05), (3, 0.001)])
def test_few_clients_wait_in_the_stack(seeds: int, most: float) -> None:
    """Of the work on the clients of `pfllib-round`, how much is on those that have finished."""
    steps = np.repeat(-(-(0.75 * uneven(20, 596, 4768)).astype(int) // 16), seeds)
    active = [int((steps > t).sum()) for t in range(steps.max())]
    sizes = graphs.stack_sizes(len(steps), len(active))
    done = sum(min(s for s in sizes if s >= a) for a in active)
    assert done / sum(active) - 1 < most
    assert len(sizes) <= 25


def test_stack_sizes_shrink_to_one() -> None:
    sizes = graphs.stack_sizes(20, 1000)
    assert sizes[0] == 20
    assert sizes[-1] == 1
    assert all(a > b for a, b in pairwise(sizes))


def test_few_steps_are_captured_for_few_sizes() -> None:
    assert len(graphs.stack_sizes(315, 13)) <= 4
    assert len(graphs.stack_sizes(20, 1000)) > 8
    for k in (1, 2, 3, 7, 20, 315):
        for steps in (4, 13, 50, 1000):
            sizes = graphs.stack_sizes(k, steps)
            assert sizes[0] == k and sizes[-1] == 1
            assert sizes == sorted(set(sizes), reverse=True)


def test_a_step_that_cannot_be_captured_is_launched_kernel_by_kernel(
    federation: Federation, monkeypatch: Any
) -> None:
    def refuse(body: Any, pool: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(graphs, "_recorded", refuse)
    monkeypatch.setattr(graphs, "_side_stream", nullcontext)
    method = methods.build({"name": "local", "lr": 0.1, "batch_size": 8})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = SmallNet()
    plain, sim = (simulation(method, federation, model, 3) for _ in range(2))
    sim.engine.captured_steps = steps = graphs.CapturedSteps(sim.engine.samples)  # type: ignore[attr-defined]
    steps.pool = "a pool"
    with pytest.warns(UserWarning, match="cannot be captured.*not permitted") as seen:
        end = end_state(sim, 2)
    assert len(seen) == len(steps.captured) == 1
    for leaf, value in end_state(plain, 2).items():
        if value.numel() and not leaf.startswith("metrics"):
            torch.testing.assert_close(end[leaf], value, rtol=1e-9, atol=1e-10)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_random_numbers_go_on_after_a_broken_capture() -> None:
    x = torch.ones(64, device="cuda")

    def broken() -> None:
        torch.nn.functional.dropout(x).cpu()  # a capture may not wait for the GPU

    with graphs._side_stream():
        try:
            graphs._recorded(broken, torch.cuda.graph_pool_handle())
            raise AssertionError("it was captured")
        except RuntimeError:
            pass
        torch.nn.functional.dropout(x)
        whole = graphs._recorded(
            lambda: x.copy_(torch.nn.functional.dropout(x)), torch.cuda.graph_pool_handle()
        )
        whole.replay()
    assert set(x.tolist()) == {0.0, 2.0}


def test_a_large_client_in_a_later_round_finds_room(monkeypatch: Any) -> None:
    """What was captured for small ones serves it too."""
    monkeypatch.setattr(graphs, "MIN_STEPS_TO_CAPTURE", 1)
    method = methods.build({"name": "fedavg", "lr": 0.1, "batch_size": 4, "epochs": 2})
    federation = ragged_federation((10, 200, 12))
    schedule, model = [[0, 2], [0, 2], [1, 2], [0, 2]], SmallNet()
    ends = {}
    for kind in ("loop", "stacked"):
        sim = simulation(method, federation, model, 4, engine=kind, schedule=schedule)
        engine: Any = sim.engine
        if kind == "stacked":
            engine.captured_steps = graphs.CapturedSteps(engine.samples)
        ends[kind] = end_state(sim, 4)
    [step] = engine.captured_steps.captured
    steps = 2 * -(-len(federation.train[1]) // 4)
    assert steps > 40 and step.max_steps >= steps
    for leaf, value in ends["loop"].items():
        if value.numel() and not leaf.startswith("metrics"):
            torch.testing.assert_close(ends["stacked"][leaf], value, rtol=1e-9, atol=1e-10)


def test_full_batches_have_few_widths() -> None:
    widths = range(1, 5000)
    assert all(w <= roomy(w) <= w * 1.125 for w in widths if w > 8)
    assert [roomy(w) for w in range(1, 9)] == list(range(1, 9))
    assert len({roomy(w) for w in range(512, 1024)}) <= 9


@pytest.mark.parametrize("where", ["body", "end"])
def test_a_capture_that_breaks_leaves_fresh_random_numbers(where: str, monkeypatch: Any) -> None:
    """Also where only its end says that it broke."""
    told: list[str] = []

    class Graph:
        def capture_begin(self, **how: Any) -> None:
            told.append("begin")

        def capture_end(self) -> None:
            told.append("end")
            if where == "end":
                raise RuntimeError("capture was invalidated")

    def body() -> None:
        if where == "body":
            raise RuntimeError("not permitted")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1, 1))
    monkeypatch.setattr(graphs, "_renew_random_numbers", lambda: told.append("renewed"))
    with pytest.raises(RuntimeError, match=r"not permitted|invalidated"):
        graphs._recorded(body, None)
    assert told == ["begin", "end", "renewed"]
