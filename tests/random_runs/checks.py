"""What must not change the numbers of a run: the engine, groups that fit the memory, threads,
captured steps, a stop on the way and where state is kept, other runs in the stack, clients' order.
Each check returns what it finds different."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from idiolect.core.tree import Tree
from idiolect.engine import cuda_graphs, memory
from idiolect.engine.stacked import StackedEngine
from idiolect.simulation.outcome import Round
from idiolect.simulation.schedule import Turn
from idiolect.simulation.side_by_side import Sweep
from idiolect.simulation.simulation import Simulation
from tests.random_runs.draws import Drawn

WITHIN = 1e-8  # relative, in float64
WITHIN_NORM = 1e-6  # BatchNorm lets rounding grow
COUNTED = ("round", "started", "arrived", "staleness", "samples", "steps", "bytes_up", "bytes_down")


@dataclass
class Ran:
    """A simulation after its last round."""

    rounds: list[Round]
    state: Tree
    meta: dict[str, Any]
    personal: Tree


def begin(drawn: Drawn, **more: Any) -> Simulation:
    exact = {"device": "cpu", "dtype": "float64", "engine": "stacked"}
    return Simulation(drawn.method, drawn.federation, drawn.model, **exact | drawn.options | more)


def finish(sim: Simulation, rounds: list[Round]) -> Ran:
    while sim.round < sim.rounds:
        rounds.append(sim.step())
    return ended(sim, rounds)


def ended(sim: Simulation, rounds: list[Round]) -> Ran:
    state, meta = sim.state()
    return Ran(rounds, state, meta, sim._personal(list(range(sim.federation.n_clients))))


def run(drawn: Drawn, **more: Any) -> Ran:
    sim = begin(drawn, **more)
    return finish(sim, [sim.start()])


def differences(drawn: Drawn, one: Ran, other: Ran) -> list[str]:
    """What differs between two runs, besides rounding."""
    within = WITHIN_NORM if "batch" in drawn.network else WITHIN
    found = [] if one.meta == other.meta else ["they end in other states"]
    found += _trees("state", one.state, other.state, within)
    found += _trees("personal", one.personal, other.personal, within)
    for a, b in zip(one.rounds, other.rounds, strict=True):
        found += [f"round {a.round}: {n}" for n in COUNTED if getattr(a, n) != getattr(b, n)]
        if not np.isclose(a.train_loss, b.train_loss, rtol=10 * within, equal_nan=True):
            found.append(f"round {a.round}: train_loss {a.train_loss} {b.train_loss}")
        found += _trees(f"round {a.round}: log", a.logs, b.logs, max(within, 1e-7))
        found += _trees(f"round {a.round}:", _columns(a), _columns(b), 10 * within)
    return found


def _columns(done: Round) -> Tree:
    numbers = {n: c for n, c in done.clients.items() if c.dtype != object}
    return {n: torch.as_tensor(c).double() for n, c in numbers.items()}


def _trees(what: str, a: Tree, b: Tree, within: float) -> list[str]:
    if set(a) != set(b):
        return [f"{what} {name} is in one only" for name in sorted(set(a) ^ set(b))]
    gaps = {name: _gap(a[name], b[name]) for name in a}
    return [f"{what} {name}: {gap:.1e}" for name, gap in gaps.items() if gap > within]


def _gap(a: Tensor, b: Tensor) -> float:
    """Relative; infinite where they are not numbers of one kind."""
    if a.shape != b.shape or not torch.equal(a.isnan(), b.isnan()):
        return float("inf")
    if not a.is_floating_point():
        return 0.0 if torch.equal(a, b) else float("inf")
    a, b = a.double().nan_to_num(), b.double().nan_to_num()
    return float((a - b).abs().max()) / max(1e-3, float(a.abs().max())) if a.numel() else 0.0


# --- the checks ---


def engines(drawn: Drawn, usual: Ran) -> list[str]:
    return differences(drawn, usual, run(drawn, engine="loop"))


def groups(drawn: Drawn, usual: Ran) -> list[str]:
    """Two clients fit the memory at once."""

    def pairs(chunks: Any, sizes: Any, guess: Any) -> Iterator[range]:
        return (range(at, min(at + 2, len(sizes))) for at in range(0, len(sizes), 2))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory.Chunks, "cut", pairs)
        return differences(drawn, usual, run(drawn))


def threads(drawn: Drawn, usual: Ran) -> list[str]:
    """Clients one by one, two at a time."""
    with pytest.MonkeyPatch.context() as patch, _two_threads():
        patch.setattr(StackedEngine, "narrow_on_cpu", True)
        patch.setattr(StackedEngine, "alone", lambda engine, *_: engine.threads is not None)
        return differences(drawn, usual, run(drawn))


@contextmanager
def _two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(1)


def captures(drawn: Drawn, usual: Ran) -> list[str]:
    """Steps on the buffers of CUDA graphs, launched one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_graphs, "MIN_STEPS_TO_CAPTURE", 1)
        sim = begin(drawn)
        sim.engine.captured_steps = cuda_graphs.CapturedSteps(sim.engine.samples)  # type: ignore[attr-defined]
        return differences(drawn, usual, finish(sim, [sim.start()]))


def stops(drawn: Drawn, usual: Ran) -> list[str]:
    """Stopped after each round in turn, and resumed with the clients' state elsewhere."""
    sim = begin(drawn)
    rounds = [sim.start()]
    for place in ("device", "host", "disk") * drawn.options["rounds"]:
        if sim.round == sim.rounds:
            break
        rounds.append(sim.step())
        tensors, meta = sim.state()
        sim = begin(drawn, keep=place)
        sim.restore({n: v.clone() for n, v in tensors.items()}, json.loads(json.dumps(meta)))
    return differences(drawn, usual, ended(sim, rounds))


def stacks(drawn: Drawn, usual: Ran) -> list[str]:
    """Beside another seed, and another value of the learning rate, in one stack."""
    known = {known.name for known in fields(drawn.method)}
    method: Any = drawn.method
    slower = replace(method, lr=method.lr / 2) if "lr" in known else method
    second = replace(drawn, method=slower, options={**drawn.options, "seed": 7})
    sweep = Sweep([begin(drawn), begin(second)])
    assert len({Sweep.kind(sim) for sim in sweep.simulations}) == 1
    rounds = [sweep.start(), *(sweep.step() for _ in range(drawn.options["rounds"]))]
    both = [ended(sim, [pair[k] for pair in rounds]) for k, sim in enumerate(sweep.simulations)]
    return differences(drawn, usual, both[0]) + differences(drawn, run(second), both[1])


def orders(drawn: Drawn, usual: Ran) -> list[str]:
    """The same clients in another order, with the same random numbers: their own results."""
    method: Any = drawn.method
    if method.name.startswith("fedfomo") or getattr(method, "variant", "") == "code":
        return []  # the number of the first arrival, the model of client 0: as they say
    turns = begin(drawn).turns
    n = drawn.federation.n_clients
    now = np.random.default_rng(drawn.number).permutation(n).tolist()  # by client: its new place
    then = [now.index(k) for k in range(n)]  # by place: who was there
    given = drawn.federation
    parts: dict[str, Any] = {
        part: tuple(getattr(given, part)[i] for i in then) for part in ("train", "val", "test")
    }
    moved = replace(given, **parts, unseen=tuple(now[i] for i in given.unseen))
    own = drawn.options.get("clients_init") or {}
    usual = run(drawn, **_scheduled(turns, range(n)))
    starts = {"clients_init": {now[i]: weights for i, weights in own.items()}}
    other = begin(replace(drawn, federation=moved), **_scheduled(turns, now), **starts)
    other.engine.keys = [other.engine.keys[i] for i in then]
    ran = finish(other, [other.start()])
    personal = {name: v[now] for name, v in ran.personal.items()}
    found = _trees("personal", usual.personal, personal, WITHIN_NORM)
    for a, b in zip(usual.rounds, ran.rounds, strict=True):
        alike = ("samples", "steps", "bytes_up", "bytes_down")
        found += [
            f"round {a.round}: {name}" for name in alike if getattr(a, name) != getattr(b, name)
        ]
        columns = {n: v[now] for n, v in _columns(b).items() if n != "client"}
        wanted = {n: v for n, v in _columns(a).items() if n != "client"}
        found += _trees(f"round {a.round}:", wanted, columns, WITHIN_NORM)
    return found


def _scheduled(turns: list[Turn], place: Any) -> dict[str, Any]:
    moved = [
        Turn(
            sorted(place[i] for i in turn.start),
            dict(sorted((place[i], s) for i, s in turn.arrive.items())),
            sorted(place[i] for i in turn.lost),
        )
        for turn in turns
    ]
    return {"schedule": moved, "participation": 1.0, "stragglers": None, "clock": None}


CHECKS: dict[str, Callable[[Drawn, Ran], list[str]]] = {
    "engines": engines,
    "groups": groups,
    "threads": threads,
    "captures": captures,
    "stops": stops,
    "stacks": stacks,
    "orders": orders,
}
