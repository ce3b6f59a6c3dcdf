"""What every registered method must satisfy, whatever it does: the two engines agree, a seed is a
run, nothing personal is sent, a resumed run is the same run, bytes are as declared."""

from __future__ import annotations

import gc
import random
import weakref
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from idiolect import methods
from idiolect.conformance import laws, problem
from idiolect.conformance.privacy import leaks, watch
from idiolect.conformance.problem import Plain, Subject, finish
from idiolect.conformance.problem import network as model
from idiolect.core import tree
from idiolect.core.local import Local
from idiolect.core.method import Method, Server, Ups
from idiolect.core.tree import Record, Tree
from idiolect.engine import cuda_graphs as graphs
from idiolect.methods.fedper import FedPer
from idiolect.simulation.simulation import Simulation
from tests.conftest import ENGINES, ragged_federation, simulation

METHODS = sorted(methods.REGISTRY)
RAGGED = problem.clients()

each_method = pytest.mark.parametrize("name", METHODS)


class Smooth(Plain):
    """No corners, where rounding may decide which way a gradient points."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(144, 8), nn.Tanh())


@cache
def subject(name: str) -> Subject:
    return Subject(name)


def small(name: str) -> Method:
    """The method with little work per round."""
    return subject(name).method


def begin(name: str | Method, kind: type[nn.Module] = Plain, **options: Any) -> Simulation:
    return problem.begin(small(name) if isinstance(name, str) else name, kind, **options)


def ran_with(method: Method, **options: Any) -> tuple[Simulation, Server, Ups]:
    """A simulation after two rounds, with the server and the arrivals of the second as they were
    before they were put together."""
    sim, seen = begin(method, **options), []
    aggregate = type(method).aggregate

    def keep(method: Method, server: Server, ups: Ups) -> Server:
        state = {k: dict(v) if isinstance(v, dict) else v for k, v in server.items()}
        seen.append(
            (
                Server(
                    state,
                    net=server.net,
                    clients=server.clients,
                    sizes=server.sizes,
                    round=server.round,
                ),
                ups,
            )
        )
        return aggregate(method, server, ups)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(method), "aggregate", keep)
        sim.step()
        sim.step()
    return sim, *seen[-1]


# --- the engines agree ---


@each_method
def test_loop_and_stacked_agree(name: str) -> None:
    assert laws.engines_agree(subject(name)) == ""


@each_method
def test_single_precision_stays_near_double(name: str) -> None:
    """Within 1e-5 of the loop in float64. Adam is left out: its first step of a weight is the sign
    of the gradient, however small that is."""
    method = small(name)
    if "server" in {f.name for f in fields(method)}:
        method = replace(method, server="sgd")  # type: ignore[call-arg]
    true, *_ = finish(begin(method, Smooth, engine="loop"))
    for engine in ENGINES:
        found, _, personal = finish(begin(method, Smooth, engine=engine, dtype="float32"))
        assert {v.dtype for v in personal.values()} == {torch.float32}
        assert set(found) == set(true)
        for what in true:
            if not what.startswith("metrics/"):
                close(true[what], found[what].to(true[what].dtype), f"{name}: {what}", 1e-5)


@each_method
@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_without_numbers_ends_like_any_other(name: str, engine: str) -> None:
    """Everything overflows in the first round: no method stumbles over what is no number."""
    huge = {n: torch.full_like(v, 1e38) for n, v in model().state_dict().items()}
    sim = begin(name, engine=engine, dtype="float32", init=huge)
    sim.start()
    _, _, personal = finish(sim)
    assert not all(v.isfinite().all() for v in personal.values())


@each_method
def test_nothing_is_left_behind(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation nobody holds any more is gone, captured steps and all: Python's collector, which
    would find it in the end, does not see how much of the GPU's memory it holds."""
    monkeypatch.setattr(graphs, "MIN_STEPS_TO_CAPTURE", 1)
    subject(name).ran()  # what PyTorch imports at first use may keep a frame for a while
    gc.collect()
    gc.disable()
    try:
        sim = begin(name)
        sim.engine.captured_steps = graphs.CapturedSteps(sim.engine.samples)  # type: ignore[attr-defined]
        sim.start()
        sim.step()
        sim.step()
        traces = [weakref.ref(sim), weakref.ref(sim.engine)]
        traces += map(weakref.ref, sim.engine.captured_steps.captured)  # type: ignore[attr-defined]
        del sim
        assert [trace() for trace in traces] == [None] * len(traces)
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["fedavg", "feddwa", "fedas", "pflego", "spfl"])
def test_engines_agree_on_images(name: str, small_net: nn.Module) -> None:
    """Convolutions and pooling: the two engines may compute them in different ways."""
    both = [simulation(small(name), RAGGED, small_net, 2, engine=e) for e in ("loop", "stacked")]
    for _ in range(2):
        for sim in both:
            sim.step()
    (loop, _), (stacked, _) = (sim.state() for sim in both)
    for n in loop:
        close(loop[n], stacked[n], f"{name}: {n}")


def close(a: Tensor, b: Tensor, what: str, within: float = 1e-9) -> None:
    assert a.shape == b.shape, what
    assert a.dtype == b.dtype, what
    if not a.is_floating_point():
        assert torch.equal(a, b), what
        return
    assert torch.equal(a.isnan(), b.isnan()), what
    a, b = a.double().nan_to_num(), b.double().nan_to_num()
    scale = max(1e-6, float(a.abs().max())) if a.numel() else 1.0
    gap = float((a - b).abs().max()) if a.numel() else 0.0
    assert gap <= within * scale, f"{what}: {gap / scale:.1e} relative"


# --- a seed is a run ---


@each_method
def test_same_seed_same_bits(name: str) -> None:
    assert laws.a_seed_is_a_run(subject(name)) == ""


@each_method
def test_another_seed_is_another_run(name: str) -> None:
    one, other = (subject(name).ran(seed=seed).personal for seed in (0, 1))
    assert any(not torch.equal(v, one[n]) for n, v in other.items())


@each_method
def test_resume_ends_with_the_same_bits(name: str) -> None:
    tensors, _ = subject(name).ran().middle
    assert all(v.device.type == "cpu" and v.is_contiguous() for v in tensors.values())
    assert laws.a_resumed_run_is_the_same_run(subject(name)) == ""


@each_method
def test_predicting_leaves_global_generators_alone(name: str) -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    sim = begin(name)
    sim.step()
    sim.personal_model(0)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]


def identical(a: Tree, b: Tree) -> None:
    assert set(a) == set(b)
    for n in a:
        assert torch.equal(a[n].nan_to_num(), b[n].nan_to_num()), n


# --- sites ---


@each_method
def test_sites_give_the_simulators_numbers(name: str) -> None:
    assert laws.sites_give_the_same_numbers(subject(name)) == ""


# --- nothing personal is sent ---


@each_method
def test_nothing_personal_is_sent(name: str) -> None:
    assert laws.nothing_private_is_sent(subject(name)) == ""


@dataclass(frozen=True)
class Leaky(FedPer):
    """Sends its head: by name, hidden in a longer vector, or as its change."""

    how: str = "name"

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        up, kept = super().fit(down, mine, local)
        head = kept["own"]["head.weight"]
        if self.how == "name":
            return up | {"more": {"head.bias": torch.zeros(len(head), 5)}}, kept
        if self.how == "vector":
            hidden = torch.cat([torch.ones(len(head), 3), head.flatten(1)], 1)
            return up | {"innocent": hidden}, kept
        return up | {"step": head - mine["own"]["head.weight"]}, kept


@pytest.mark.parametrize(
    ("how", "where"),
    [
        ("name", "more/head.bias is private"),
        ("vector", "own/head.weight is in innocent"),
        ("change", "own/head.weight is in step"),
    ],
)
def test_a_leak_is_found(how: str, where: str) -> None:
    assert where in set(leaks(watch(Leaky(lr=0.1, batch_size=8, how=how))))


# --- sizes ---


@each_method
def test_bytes_are_counted_and_as_declared(name: str) -> None:
    assert laws.bytes_are_counted(subject(name)) == ""


@each_method
def test_a_single_client(name: str) -> None:
    models = []
    for engine in ENGINES:
        sim = simulation(small(name), ragged_federation((24,)), model(), 2, engine=engine)
        sim.step()
        result = sim.step()
        assert 0 <= result.clients["accuracy_before"][0] <= 1
        models.append(sim.personal_model(0))
    assert all(bool(v.isfinite().all()) for v in models[0].values())
    for leaf, value in models[0].items():
        close(value, models[1][leaf], f"{name}: {leaf}")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "name", [n for n in METHODS if "drop_last" in methods.REGISTRY[n].__dataclass_fields__]
)
def test_a_client_smaller_than_one_batch_trains(name: str, engine: str) -> None:
    """Whoever leaves out last partial batches leaves such a client untrained, and averages it. Then
    no learning rate would make a difference to it."""
    losses = []
    for lr in (0.1, 0.2):
        method = replace(small(name), batch_size=16, drop_last=True, lr=lr)  # type: ignore[call-arg]
        sim = simulation(method, ragged_federation((40, 7, 1)), model(), 1, engine=engine)
        losses.append(sim.step().clients["loss_after"])
    assert np.isfinite(losses).all() and (losses[0] != losses[1]).all()


@each_method
def test_held_out_clients(name: str) -> None:
    """They train once on what the server would send; the server never hears of them."""
    sim = simulation(small(name), replace(RAGGED, unseen=(1, 3)), model(), 2)
    results = [sim.step(), sim.step()]
    assert [r.arrived for r in results] == [[0, 2, 4]] * 2
    assert np.isfinite(results[-1].clients["accuracy_before"]).all()
    assert np.isfinite(results[-1].clients["accuracy_after"]).all()


# --- what it says of itself ---


@each_method
def test_it_introduces_itself(name: str) -> None:
    kind = methods.REGISTRY[name]
    assert kind.name == name
    assert kind.paper
    assert kind.personal_part
    assert kind.__doc__
    for f in fields(kind):
        assert f.metadata.get("doc"), f"{name}.{f.name} has no help text"
        assert isinstance(f.default, int | float | str | bool), f"{name}.{f.name}"


def test_records_are_trees_of_tensors() -> None:
    """What the walk over messages relies on: nothing but tensors in them."""

    def only_tensors(record: Record) -> bool:
        return all(isinstance(v, Tensor) for v in tree.leaves(record).values())

    for name in METHODS:
        assert only_tensors(subject(name).ran().end), name
