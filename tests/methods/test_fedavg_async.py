"""FedAvg (Async) and FedAsync: late work in plain PyTorch, staleness functions in closed form."""

from __future__ import annotations

import pytest
import torch

from idiolect import methods
from idiolect.simulation.schedule import Clock, Stragglers
from tests.conftest import ENGINES
from tests.methods.plain import (
    CLIENTS,
    NET,
    START,
    TINY,
    NormNet,
    State,
    assert_same,
    batches,
    combine,
    model_with,
    seeded,
    sgd,
)
from tests.methods.straggling import Straggling
from tests.watched import Watched

FIXED = {"lr": 0.2, "batch_size": 4, "steps": 2, "order": "fixed"}
CODE = ("TUB", "T.UB", "B", "B")


def raw(w0: State, wk: State, w1: State, wt: State, p: int) -> State:
    return wk


def mixed(w0: State, wk: State, w1: State, wt: State, p: int) -> State:
    a = 0.8 * (p + 1) ** -0.5
    return combine([a, 1 - a], [wk, wt])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "late"), [("fedavg_async", raw), ("fedasync", mixed)])
def test_late_work(name: str, late: object, engine: str) -> None:
    stragglers = Stragglers(periods=(1, 2))
    ran = Watched({"name": name, **FIXED}, TINY, NET, 6, engine=engine, stragglers=stragglers)
    server, _ = Straggling(CODE, late).run(6)  # type: ignore[arg-type]
    for t in range(6):
        assert_same(ran.server[t]["model"], server[t], what=f"round {t}")


@pytest.mark.parametrize("name", ["fedavg_async", "fedasync"])
def test_uniform_mean_and_the_papers_cycle(name: str) -> None:
    stragglers = Stragglers(periods=(1, 2), cycle="paper")
    method = {"name": name, "weighting": "uniform", **FIXED}
    ran = Watched(method, TINY, NET, 5, stragglers=stragglers)
    late = raw if name == "fedavg_async" else mixed
    server, _ = Straggling(("TU", "T.U", "B", "B"), late, uniform=True).run(5)
    assert_same(ran.server[-1]["model"], server[-1])


def test_on_time_work_is_not_mixed() -> None:
    both = [Watched({"name": n, **FIXED}, TINY, NET, 3) for n in ("fedavg_async", "fedasync")]
    assert_same(both[0].server[-1]["model"], both[1].server[-1]["model"], 0)


@pytest.mark.parametrize(
    ("options", "staleness", "expected"),
    [
        ({}, 3, 0.5),
        ({"exponent": 1.0}, 3, 0.25),
        ({"staleness": "hinge"}, 4, 1.0),
        ({"staleness": "hinge"}, 6, 1 / 21),
        ({"staleness": "hinge", "hinge_from": 2.0, "hinge_slope": 0.5}, 6, 1 / 3),
        ({"staleness": "constant"}, 9, 1.0),
    ],
)
def test_freshness(options: dict, staleness: int, expected: float) -> None:
    method = methods.build({"name": "fedasync", **options})
    got = method.freshness(torch.tensor([float(staleness)]))  # type: ignore[attr-defined]
    assert got.item() == pytest.approx(expected, abs=1e-6)


def test_mixing_rate() -> None:
    stragglers = Stragglers(periods=(1, 0, 0, 0))
    method = {"name": "fedasync", "mixing": 0.3, "staleness": "constant", **FIXED}
    ran = Watched(method, TINY, NET, 2, stragglers=stragglers)

    def late(w0: State, wk: State, w1: State, wt: State, p: int) -> State:
        return combine([0.3, 0.7], [wk, wt])

    server, _ = Straggling(("TUB", "B", "B", "B"), late).run(2)
    assert_same(ran.server[-1]["model"], server[-1])


def test_mini_batches_continue_where_the_last_round_stopped() -> None:
    """Client 1 has batches of 4, 4 and 1 samples; two a round is 4 4 | 1 4 | 4 1."""
    ran = Watched({"name": "fedavg_async", **FIXED}, TINY, NET, 3)
    rows = [torch.arange(0, 4), torch.arange(4, 8), torch.arange(8, 9)] * 2
    w = dict(START)
    for t in range(3):
        assert_same(ran.up(t, "model", 1), sgd(w, CLIENTS[1], rows[2 * t : 2 * t + 2], lr=0.2))
        w = ran.server[t]["model"]
    assert [ran.mine[t][1]["cursor"].item() for t in range(4)] == [0, 2, 4, 6]


@pytest.mark.parametrize("engine", ENGINES)
def test_mixing_at_the_client(engine: str) -> None:
    """The same server; a late client has the mixture as its own, and is sent the present model."""
    late, what = Stragglers(periods=(1, 2)), {"name": "fedasync", **FIXED}
    ours, theirs = (
        Watched({**what, "mix_at": at}, TINY, NET, 6, engine=engine, stragglers=late)
        for at in ("client", "server")
    )
    for t in range(6):
        assert_same(ours.server[t]["model"], theirs.server[t]["model"], 1e-14)
    size = 8 * sum(v.numel() for v in START.values())
    down = [ours.rounds[t].bytes_down - theirs.rounds[t].bytes_down for t in range(6)]
    assert [d / (size + 8) for d in down] == [0, 1, 1, 0, 1, 1]  # TUBTUB, T.UBTU
    mixture = mixed({}, ours.up(0, "model", 0), {}, ours.server[0]["model"], 1)
    assert_same(ours.rejoined[1][0]["model"], mixture)
    hits = (model_with(mixture)(CLIENTS[0].x).argmax(1) == CLIENTS[0].y).double().mean()
    assert ours.rounds[1].clients["accuracy_after"][0] == pytest.approx(float(hits))


def test_epochs_of_algorithm_2() -> None:
    """PLGA's text: 20 passes over the data instead of 20 mini-batches."""
    ran = Watched(
        {"name": "plga", "lr": 0.05, "batch_size": 4, "steps": 0, "order": "fixed"}, TINY, NET, 1
    )
    rows = batches(len(CLIENTS[1]), 4, 20)
    assert_same(ran.up(0, "model", 1), sgd(dict(START), CLIENTS[1], rows, lr=0.05))


def test_virtual_clock() -> None:
    """Every late arrival is used with the staleness the clock gave it."""
    clock = Clock(window=1.0, spread=0.8, jitter=0.2)
    ran = Watched({"name": "fedasync", **FIXED}, TINY, NET, 8, clock=clock)
    stale = [s for r in ran.rounds for s in r.staleness]
    assert max(stale) >= 1
    w = dict(START)
    work: dict[int, State] = {}
    for t, r in enumerate(ran.rounds):
        for k, i in enumerate(r.started):
            work[i] = ran.up(t, "model", k)
        shares = [len(CLIENTS[i]) for i in r.arrived]
        if r.arrived:
            sent = [
                mixed({}, work[i], {}, w, p) if p else work[i]
                for i, p in zip(r.arrived, r.staleness, strict=True)
            ]
            w = combine([n / sum(shares) for n in shares], sent)
        assert_same(ran.server[t]["model"], w, what=f"round {t}")


def test_batchnorm_statistics_travel_with_the_model() -> None:
    ran = Watched({"name": "fedavg_async", **FIXED}, TINY, seeded(NormNet), 1)
    means = [ran.up(0, "model", i)["body.1.running_mean"] for i in range(4)]
    sizes = torch.tensor([float(len(c)) for c in CLIENTS]).double()
    expected = sum(n / sizes.sum() * m for n, m in zip(sizes, means, strict=True))
    assert torch.allclose(ran.server[0]["model"]["body.1.running_mean"], expected, atol=1e-14)
