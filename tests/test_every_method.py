"""What every registered method must satisfy, whatever it does: the two engines agree, a seed is a
run, nothing personal is sent, a resumed run is the same run, bytes are as declared."""

from __future__ import annotations

import gc
import json
import random
import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from idiolect import methods
from idiolect.core import tree
from idiolect.core.local import Local
from idiolect.core.method import Method, Server, Ups
from idiolect.core.tree import Record, Tree
from idiolect.engine import cuda_graphs as graphs
from idiolect.methods.fedper import FedPer
from idiolect.simulation.schedule import Stragglers
from idiolect.simulation.simulation import Simulation
from tests.conftest import ENGINES, ragged_federation, simulation
from tests.watched import Watched

METHODS = sorted(methods.REGISTRY)
RAGGED = ragged_federation()
ROUNDS = 3

each_method = pytest.mark.parametrize("name", METHODS)


class Plain(nn.Module):
    """No BatchNorm: through it rounding would grow far beyond 1e-9 in three rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(144, 8), nn.LayerNorm(8), nn.ReLU())
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


class Normed(Plain):
    """With BatchNorm statistics, and without a bias that never moves in front of them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(144, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU()
        )


class Smooth(Plain):
    """No corners, where rounding may decide which way a gradient points."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(144, 8), nn.Tanh())


@cache
def model(kind: type[nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind()


def small(name: str) -> Method:
    """The method with little work per round."""
    defaults = {f.name: f.default for f in fields(methods.REGISTRY[name])}
    wanted = {"lr": 0.1, "batch_size": 8, "epochs": 2, "tau": 5, "gamma": 2, "growth_rounds": 0}
    if defaults.get("steps"):
        wanted["steps"] = 3
    return methods.build({"name": name} | {k: v for k, v in wanted.items() if k in defaults})


def begin(name: str | Method, kind: type[nn.Module] = Plain, **options: Any) -> Simulation:
    """Ragged clients, three of five asked each round; two are stragglers if that may be."""
    method = small(name) if isinstance(name, str) else name
    late = Stragglers(periods=(1, 2)) if method.asynchronous else None
    settings = {"participation": 0.6, "stragglers": late} | options
    return simulation(method, RAGGED, model(kind), ROUNDS, **settings)


@dataclass(frozen=True)
class Run:
    """What is left of a run: everything the simulation holds, before the last round and after."""

    middle: tuple[Tree, dict[str, Any]]
    end: Tree
    meta: dict[str, Any]
    personal: Tree


def finish(sim: Simulation) -> tuple[Tree, dict[str, Any], Tree]:
    while sim.round < ROUNDS:
        sim.step()
    everyone = list(range(RAGGED.n_clients))
    return *sim.state(), tree.clone(sim._personal(everyone))


@cache
def ran(name: str, engine: str = "stacked", seed: int = 0) -> Run:
    sim = begin(name, engine=engine, seed=seed)
    for _ in range(ROUNDS - 1):
        sim.step()
    middle = sim.state()
    return Run(middle, *finish(sim))


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
    loop, stacked = ran(name, "loop"), ran(name, "stacked")
    assert set(loop.end) == set(stacked.end)
    assert loop.meta == stacked.meta
    for what in (*loop.end, *loop.personal):
        a = loop.personal[what] if what in loop.personal else loop.end[what]
        b = stacked.personal[what] if what in loop.personal else stacked.end[what]
        close(a, b, f"{name}: {what}")


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
    huge = {n: torch.full_like(v, 1e38) for n, v in model(Plain).state_dict().items()}
    sim = begin(name, engine=engine, dtype="float32", init=huge)
    sim.start()
    _, _, personal = finish(sim)
    assert not all(v.isfinite().all() for v in personal.values())


@each_method
def test_nothing_is_left_behind(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation nobody holds any more is gone, captured steps and all: Python's collector, which
    would find it in the end, does not see how much of the GPU's memory it holds."""
    monkeypatch.setattr(graphs, "MIN_STEPS_TO_CAPTURE", 1)
    ran(name)  # what PyTorch imports at first use may keep a frame for a while
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
    first = ran(name)
    end, meta, personal = finish(begin(name))
    identical(first.end, end)
    identical(first.personal, personal)
    assert first.meta == meta


@each_method
def test_another_seed_is_another_run(name: str) -> None:
    assert any(
        not torch.equal(v, ran(name).personal[n]) for n, v in ran(name, seed=1).personal.items()
    )


def identical(a: Tree, b: Tree) -> None:
    assert set(a) == set(b)
    for n in a:
        assert torch.equal(a[n].nan_to_num(), b[n].nan_to_num()), n


@each_method
def test_resume_ends_with_the_same_bits(name: str) -> None:
    whole = ran(name)
    tensors, meta = whole.middle
    assert all(v.device.type == "cpu" and v.is_contiguous() for v in tensors.values())
    sim = begin(name)
    sim.restore({n: v.clone() for n, v in tensors.items()}, json.loads(json.dumps(meta)))
    assert sim.round == ROUNDS - 1
    end, after, personal = finish(sim)
    identical(whole.end, end)
    identical(whole.personal, personal)
    assert whole.meta == after


@each_method
def test_global_generators_are_left_alone(name: str) -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    sim = begin(name)
    sim.step()
    sim.personal_model(0)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]


# --- nothing personal is sent ---

# What a client keeps or predicts with is never sent, except where a copy of what it sent is the
# method's own design. Each line names the part of `mine` (or `personal`, the model it predicts
# with) and what of it is also sent.
COPIES = {
    "cd2_pfed": {"model": "all", "personal": "all"},  # shared channels; the rest in its own test
    "fedala": {"model": "all", "personal": "all"},  # the last trained model, mixed next time
    "fedamp": {"model": "weights", "personal": "weights"},  # mixed by the server
    "fedas": {"model": "base", "personal": "base"},  # alignment learns from the last base
    "fedfomo": {"model": "all", "personal": "all"},  # mixed by the clients
    "l2c": {"update": "weights"},  # to tell its own share of the mixture
    "lga": {"wk": "weights"},  # the leap starts from it
    "plga": {"wk": "weights"},
    "pfedme": {"theta": "stats", "personal": "stats"},  # statistics are shared as in FedAvg
    "scaffold": {"control": "weights"},  # sends its change
}


def watch(method: Method) -> Watched:
    late = Stragglers(periods=(1, 2)) if method.asynchronous else None
    return Watched(method, RAGGED, model(Normed), ROUNDS, stragglers=late)


@each_method
def test_nothing_personal_is_sent(name: str) -> None:
    assert list(leaks(watch(small(name)), COPIES.get(name, {}))) == []


def leaks(seen: Watched, copies: dict[str, str]) -> Iterator[str]:
    """Private names that occur in a message, and private numbers (or their change) that do."""
    for t, message in messages(seen):
        sent = tree.leaves(seen.downs[t])
        delivered = {last(n): v for n, v in sent.items()}
        for i, up in message.items():
            ups = tree.leaves(up)
            before, mine = (tree.leaves(m[i]) for m in (seen.mine[t], seen.mine[t + 1]))
            private = {last(n) for n in mine} - set(delivered)
            yield from (f"{n} is private" for n in ups if last(n) in private)
            own = mine | {f"personal/{n}": v for n, v in seen.personal[t][i].items()}
            for n, value in own.items():
                sent_on_purpose = last(n) not in private and last(n) in copied(seen, copies, n)
                if sent_on_purpose or not value.is_floating_point():
                    continue
                for secret in (value, value - before[n]) if n in before else (value,):
                    if varied(secret) and not repeats(secret, delivered.get(last(n))):
                        yield from (f"{n} is in {u}" for u, v in ups.items() if contains(v, secret))


def messages(seen: Watched) -> Iterator[tuple[int, dict[int, Record]]]:
    """What was sent by clients that were there before: a first move away from the common start
    would look like what is kept of it."""
    for t in range(1, ROUNDS):
        known = {i for r in seen.rounds[:t] for i in r.started}
        fresh = {i: tree.row(seen.fits[t].up, k) for k, i in enumerate(seen.rounds[t].started)}
        yield t, {i: up for i, up in (fresh | seen.rejoined[t]).items() if i in known}


def last(path: str) -> str:
    return path.rpartition("/")[2]


def varied(x: Tensor) -> bool:
    """Numbers one could recognise: not a single one, nor all the same."""
    return x.numel() > 1 and bool((x != x.flatten()[0]).any())


def repeats(secret: Tensor, delivered: Tensor | None) -> bool:
    """The client merely holds what the server sent to all."""
    return delivered is not None and contains(delivered, secret)


def contains(message: Tensor, secret: Tensor) -> bool:
    """The numbers of `secret` occur one after the other anywhere in `message`."""
    hay, needle = message.double().flatten(), secret.double().flatten()
    tiny = 1e-12 * needle.abs().max()
    first = (hay[: max(0, len(hay) - len(needle) + 1)] - needle[0]).abs() <= tiny
    return any(
        bool(((hay[at : at + len(needle)] - needle).abs() <= tiny).all())
        for at in first.nonzero().flatten().tolist()
    )


def copied(seen: Watched, copies: dict[str, str], path: str) -> tuple[str, ...]:
    """The leaves of this part that are sent on purpose."""
    net = seen.sim.engine.net
    groups = {"weights": net.weights, "stats": net.stats, "all": net.names, "base": net.body}
    return groups.get(copies.get(path.partition("/")[0], ""), ())


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
    assert where in set(leaks(watch(Leaky(lr=0.1, batch_size=8, how=how)), {}))


# --- sizes ---


SIMPLE = re.compile(r"(\d+)( base| head| without norm)?")  # other forms: the method's own test


@pytest.mark.parametrize(
    "name", [n for n in METHODS if SIMPLE.fullmatch(methods.REGISTRY[n].traffic)]
)
def test_traffic_is_as_declared(name: str) -> None:
    method = small(name)
    form = SIMPLE.fullmatch(method.traffic)
    assert form is not None
    sim = simulation(method, RAGGED, model(Plain), 2)
    sim.step()
    second = sim.step()
    net = sim.engine.net
    names = {
        None: net.names,
        " base": net.body,
        " head": net.head,
        " without norm": [n for n in net.names if n not in net.part("norm")],
    }[form[2]]
    size = 8 * sum(sim.start_tree[n].numel() for n in names)
    extra = second.bytes_up + second.bytes_down - 5 * int(form[1]) * size
    assert 0 <= extra <= 5 * 64  # a few numbers per client beside the models
    if method.traffic == "0":
        assert extra == 0


@each_method
def test_a_single_client(name: str) -> None:
    models = []
    for engine in ENGINES:
        sim = simulation(small(name), ragged_federation((24,)), model(Plain), 2, engine=engine)
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
        sim = simulation(method, ragged_federation((40, 7, 1)), model(Plain), 1, engine=engine)
        losses.append(sim.step().clients["loss_after"])
    assert np.isfinite(losses).all() and (losses[0] != losses[1]).all()


@each_method
def test_held_out_clients(name: str) -> None:
    """They train once on what the server would send; the server never hears of them."""
    sim = simulation(small(name), replace(RAGGED, unseen=(1, 3)), model(Plain), 2)
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
        assert only_tensors(ran(name).end), name
