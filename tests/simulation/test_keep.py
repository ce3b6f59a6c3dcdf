"""Many clients: where their data and state are kept changes memory, and no number."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from idiolect import methods
from idiolect.core.clients import Table
from idiolect.data import Federation
from idiolect.engine import cuda_graphs as graphs
from idiolect.engine.samples import SampleWindow
from idiolect.errors import UserError
from idiolect.simulation.schedule import Stragglers
from idiolect.simulation.side_by_side import Sweep
from idiolect.simulation.simulation import Simulation
from tests.conftest import ragged_federation, simulation

SIZES = (24, 30, 7, 40, 33, 17, 65)
RAGGED = ragged_federation(SIZES)
# State of clients, of servers, of both, none; adaptation; whole-data gradients; late work; rows.
NAMES = ("fedavg", "fedper", "fedas", "feddwa", "spfl", "fedpac", "fedfomo", "fedrod", "plga")
NAMES += ("per_fedavg", "per_fedavg_async", "fedproto", "fedala", "pflego", "scaffold")


def begin(name: str, model: nn.Module, **options: Any) -> Simulation:
    method = methods.build({"name": name})
    late = Stragglers(periods=(1, 2)) if method.asynchronous else None
    settings = {"participation": 0.6, "stragglers": late} | options
    return simulation(method, RAGGED, model, 4, **settings)


def end(sim: Simulation) -> dict[str, torch.Tensor]:
    while sim.round < sim.rounds:
        sim.step()
    return sim.state()[0]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert set(a) == set(b)
    for name, value in a.items():
        assert torch.equal(value.nan_to_num(), b[name].nan_to_num()), name


@pytest.mark.parametrize("name", NAMES)
def test_numbers_do_not_depend_on_the_place(name: str, small_net: nn.Module) -> None:
    sims = {keep: begin(name, small_net, keep=keep) for keep in ("device", "host", "disk")}
    assert isinstance(sims["host"].engine.samples, SampleWindow)
    assert not isinstance(sims["device"].engine.samples, SampleWindow)
    ends = {keep: end(sim) for keep, sim in sims.items()}
    same(ends["device"], ends["host"])
    same(ends["device"], ends["disk"])


def test_the_loop_engine_has_a_window_too(small_net: nn.Module) -> None:
    both = [end(begin("fedpac", small_net, engine="loop", keep=k)) for k in ("device", "host")]
    same(*both)


@pytest.mark.parametrize(("first", "then"), [("device", "disk"), ("disk", "host")])
@pytest.mark.parametrize("name", ["fedas", "feddwa", "plga"])
def test_a_run_goes_on_from_another_place(
    name: str, first: str, then: str, small_net: nn.Module
) -> None:
    sim = begin(name, small_net, keep=first)
    sim.step(), sim.step()
    tensors, meta = sim.state()
    other = begin(name, small_net, keep=then)
    other.restore({n: v.clone() for n, v in tensors.items()}, json.loads(json.dumps(meta)))
    same(end(sim), end(other))


def test_captured_steps_see_the_window(small_net: nn.Module, monkeypatch: Any) -> None:
    """Cohorts of growing size: what was captured on a smaller window is captured anew."""
    monkeypatch.setattr(graphs, "MIN_STEPS_TO_CAPTURE", 1)
    ends = []
    for keep in ("device", "host"):
        sim = simulation(
            methods.build({"name": "fedas", "batch_size": 8}),
            RAGGED,
            small_net,
            4,
            schedule=[[2, 5], [0, 1], [3, 6], [2, 4]],
            keep=keep,
        )
        sim.engine.captured_steps = graphs.CapturedSteps(sim.engine.samples)  # type: ignore[attr-defined]
        ends.append(end(sim))
        assert sim.engine.captured_steps.captured  # type: ignore[attr-defined]
    assert sim.engine.samples.storage_version > 1
    same(*ends)


def test_a_window_that_moved_on_is_filled_again(small_net: nn.Module) -> None:
    engine = begin("fedavg", small_net, keep="host").engine
    one, other = engine.local([0, 1], 0), engine.local([4, 5], 0)
    seen = []
    for local in (one, other, one):
        seen.append(engine.samples.inputs(local.index))
        assert torch.equal(seen[-1], RAGGED.x[local.index_host])
        assert torch.equal(engine.samples.y[local.index], RAGGED.y[local.index_host])
    assert torch.equal(seen[0], seen[2])


def test_seeds_side_by_side(small_net: nn.Module) -> None:
    ends = []
    for keep in ("device", "host"):
        sims = [begin("fedper", small_net, keep=keep, seed=seed) for seed in (0, 1)]
        together = Sweep(sims)
        assert isinstance(together.engine.samples, SampleWindow) == (keep == "host")
        for _ in range(2):
            together.step()
        ends.append(sims[1].state()[0])
    same(*ends)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["fedavg", "fedas", "feddwa", "spfl", "plga"])
def test_on_a_gpu(name: str, small_net: nn.Module, monkeypatch: Any) -> None:
    """Asynchronous copies and captured steps: the same numbers as with everything on the GPU."""
    monkeypatch.setattr(graphs, "MIN_STEPS_TO_CAPTURE", 1)
    ends = [
        end(begin(name, small_net, keep=keep, device="cuda")) for keep in ("device", "host", "disk")
    ]
    for other in ends[1:]:
        for leaf, value in ends[0].items():
            torch.testing.assert_close(other[leaf], value, rtol=1e-9, atol=1e-10, equal_nan=True)


def test_unknown_place(small_net: nn.Module) -> None:
    with pytest.raises(UserError, match="did you mean 'disk'"):
        begin("fedavg", small_net, keep="disc")


# --- 2,000 clients ---


def many(n: int) -> Federation:
    rng = np.random.default_rng(0)
    x, y = (
        torch.from_numpy(rng.normal(size=(4 * n, 6))),
        torch.from_numpy(rng.integers(0, 3, 4 * n)),
    )
    own = torch.arange(4 * n).split(4)
    train, test = tuple(rows[:3] for rows in own), tuple(rows[3:] for rows in own)
    return Federation(x, y, train, (), test, classes=3)


@pytest.mark.parametrize("keep", ["host", "disk"])
def test_thousands_of_clients(keep: str) -> None:
    """The window holds a cohort or a piece of the evaluation, the tables those who took part."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    federation, rounds = many(2000), 4
    sims = [
        simulation(
            methods.build({"name": "feddwa", "batch_size": 2}),
            federation,
            model,
            rounds,
            participation=0.01,
            keep=where,
            eval_every=rounds,
        )
        for where in ("device", keep)
    ]
    same(*(end(sim) for sim in sims))
    table, took_part = sims[1].server["models"], {i for t in sims[1].turns for i in t.start}
    assert isinstance(table, Table)
    assert {i for i, _ in table.items()} == took_part and len(took_part) <= 20 * rounds
    assert len(sims[1].engine.samples.x) <= 1.3 * 256
