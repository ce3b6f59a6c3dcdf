"""Per-FedAvg of PLGA's Table 2: the latest model of everybody, stale or untouched, is averaged."""

from __future__ import annotations

import pytest

from idiolect.simulation.schedule import Stragglers
from tests.conftest import ENGINES
from tests.methods.plain import CLIENTS, NET, START, TINY, assert_same, combine, sgd, share
from tests.watched import Watched

METHOD = {"name": "per_fedavg_async", "lr": 0.2, "batch_size": "full", "steps": 2}


def trained(w: dict, i: int) -> dict:
    return sgd(w, CLIENTS[i], lr=0.2, repeat=4)  # two mini-batches, two steps on each


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_stale_and_untouched_models_count(engine: str, weighting: str) -> None:
    """Client 0 has period 2 in a cycle of 3: it starts in rounds 0, 3 and arrives in 2, 5."""
    stragglers = Stragglers(periods=(2,), cycle="paper")
    ran = Watched(
        {**METHOD, "weighting": weighting}, TINY, NET, 6, engine=engine, stragglers=stragglers
    )
    weights = share(CLIENTS) if weighting == "samples" else [0.25] * 4
    w, latest, out = START, [START] * 4, START
    for t in range(6):
        if t % 3 == 0:
            out = trained(w, 0)
        if t % 3 == 2:
            latest[0] = out
        latest[1:] = [trained(w, i) for i in (1, 2, 3)]
        w = combine(weights, latest)
        assert ran.rounds[t].arrived == ([0, 1, 2, 3] if t % 3 == 2 else [1, 2, 3])
        assert_same(ran.server[t]["model"], w, what=f"round {t}")


def test_without_stragglers_it_is_per_fedavg_with_two_steps() -> None:
    async_ = Watched(METHOD, TINY, NET, 3)
    plain = METHOD | {"name": "per_fedavg", "form": "two_step", "adapt_steps": 0}
    sync = Watched(plain, TINY, NET, 3)
    for t in range(3):
        assert_same(async_.server[t]["model"], sync.server[t]["model"], tol=0)


def test_nobody_arrives_nothing_changes() -> None:
    schedule = [{"start": [0, 1], "arrive": []}, {"start": [], "arrive": [[0, 1], [1, 1]]}]
    ran = Watched(METHOD, TINY, NET, 2, schedule=schedule)
    assert_same(ran.server[0]["model"], START, tol=0)
    late = [trained(START, 0), trained(START, 1), START, START]
    assert_same(ran.server[1]["model"], combine(share(CLIENTS), late))


def test_the_stored_models_survive_a_resume() -> None:
    whole = Watched(METHOD, TINY, NET, 3, schedule=[[0, 1], [2], [1, 3]])
    half = Watched(METHOD, TINY, NET, 2, schedule=[[0, 1], [2], [1, 3]]).sim
    rest = type(half)(
        half.method, TINY, NET, rounds=3, schedule=[[0, 1], [2], [1, 3]], device="cpu",
        dtype="float64",
    )  # fmt: skip
    rest.restore(*half.state())
    rest.step()
    assert_same(rest.server["model"], whole.server[2]["model"], tol=0)
