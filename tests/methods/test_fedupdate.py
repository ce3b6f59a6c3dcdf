"""FedUpdate: the step after averaging is tested, and kept for the next round."""

from __future__ import annotations

import pytest

from idiolect import methods
from tests.conftest import ENGINES, run
from tests.methods.plain import (
    CLIENTS,
    NET,
    START,
    TINY,
    assert_same,
    combine,
    differ,
    gradient,
    sgd,
)
from tests.watched import Watched

FULL = {"lr": 0.2, "batch_size": "full", "weight_decay": 0.01}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("steps", [1, 2])
def test_three_rounds_by_hand(engine: str, steps: int) -> None:
    ran = Watched({"name": "fedupdate", "update_steps": steps, **FULL}, TINY, NET, 3, engine=engine)
    own = [START] * 4
    for t in range(3):
        trained = [sgd(w, c, lr=0.2, decay=0.01) for w, c in zip(own, CLIENTS, strict=True)]
        mean = combine([0.25] * 4, trained)
        assert_same(ran.server[t]["model"], mean, what=f"mean {t}")
        own = [sgd(mean, c, lr=0.2, decay=0.01, repeat=steps) for c in CLIENTS]
        for i in range(4):
            assert_same(ran.personal[t][i], own[i], what=f"client {i} round {t}")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_tested_model_starts_the_next_round(engine: str) -> None:
    """Also with shuffled mini-batches: the step is the same one."""
    method = {"name": "fedupdate", "lr": 0.2, "batch_size": 2, "weight_decay": 0.0}
    ran = Watched(method, TINY, NET, 3, engine=engine)
    # One mini-batch of local work from the tested model, nothing else in between.
    local = ran.sim.engine.local([1], 2)
    start = {n: v[None] for n, v in ran.personal[1][1].items()}
    trained = ran.sim.method.train(local, start)
    assert_same({n: v[0] for n, v in trained.items()}, ran.up(2, "model", 1), tol=1e-12)


def test_a_kept_optimizer_is_that_of_training() -> None:
    """The step after averaging is by a new one each time: what is tested starts the next round."""
    kept = {"momentum": 0.5, "keep_optimizer": True, "weight_decay": 0.0}
    ran = Watched({"name": "fedupdate", **FULL, **kept}, TINY, NET, 3)
    for k, client in enumerate(CLIENTS):
        own, speed = START, {n: 0 * v for n, v in START.items()}
        for t in range(3):
            slope = gradient(own, client)
            speed = {n: 0.5 * speed[n] + slope[n] for n in own}
            trained = {n: own[n] - 0.2 * speed[n] for n in own}
            assert_same(ran.up(t, "model", k), trained, 1e-12, what=f"client {k} round {t}")
            own = ran.personal[t][k]
            assert_same(own, sgd(ran.server[t]["model"], client, lr=0.2), 1e-12)


def test_steps_use_new_mini_batches_every_round() -> None:
    method = methods.build({"name": "fedupdate", "lr": 0.2, "batch_size": 2})
    sim = run(method, TINY, NET, 3)
    start = {n: v[None] for n, v in START.items()}
    first, second = (method.adapt(start, sim.engine.local([1], t)) for t in (1, 2))
    assert differ(first, second)


def test_nothing_is_updated_before_the_first_mean() -> None:
    sim = run(methods.build({"name": "fedupdate", **FULL}), TINY, NET, 1)
    fresh = type(sim)(sim.method, TINY, NET, rounds=1, device="cpu", dtype="float64")
    assert_same(fresh.personal_model(0), START, tol=0)


def test_no_steps_is_fedavg_to_the_bit() -> None:
    settings = {"lr": 0.2, "batch_size": 3, "weight_decay": 1e-4, "weighting": "uniform"}
    ours = run(methods.build({"name": "fedupdate", "update_steps": 0, **settings}), TINY, NET)
    theirs = run(methods.build({"name": "fedavg", **settings}), TINY, NET)
    assert_same(ours.server["model"], theirs.server["model"], tol=0)
    assert_same(ours.personal_model(2), theirs.personal_model(2), tol=0)


def test_fine_tuning_it_does_not_leak_into_training() -> None:
    plain = run(methods.build({"name": "fedupdate", **FULL}), TINY, NET)
    tuned = run(methods.build({"name": "fedupdate_ft", **FULL}), TINY, NET)
    assert_same(tuned.server["model"], plain.server["model"], tol=0)
    assert differ(tuned.personal_model(1), plain.personal_model(1))
