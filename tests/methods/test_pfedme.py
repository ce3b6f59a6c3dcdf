"""pFedMe: Algorithm 1 by hand, the personal model tested, a global model that moves."""

from __future__ import annotations

import pytest

from idiolect import methods
from idiolect.errors import UserError
from idiolect.methods.pfedme import PFedMe
from tests.conftest import ENGINES, SmallNet, run
from tests.methods.plain import (
    CLIENTS,
    NET,
    START,
    TINY,
    assert_same,
    batches,
    combine,
    differ,
    gradient,
    share,
)
from tests.watched import Watched


@pytest.mark.parametrize("engine", ENGINES)
def test_two_rounds_by_hand(engine: str) -> None:
    """Ragged mini-batches: each client moves its w once for every one of its own."""
    lam, k, inner, lr, beta = 3.0, 4, 0.15, 0.1, 0.7
    method = {
        "name": "pfedme",
        "lam": lam,
        "inner_steps": k,
        "personal_lr": inner,
        "lr": lr,
        "beta": beta,
        "epochs": 2,
        "batch_size": 4,
        "order": "fixed",
        "weight_decay": 0.01,
        "lr_decay": 0.9,
    }
    ran = Watched(method, TINY, NET, 2, engine=engine)
    received = START
    for t in range(2):
        sent = []
        for i, c in enumerate(CLIENTS):
            w = theta = received
            for rows in batches(len(c), 4, epochs=2):
                for _ in range(k):
                    g = gradient(theta, c, rows)
                    theta = {
                        n: v - inner * 0.9**t * (g[n] + lam * (v - w[n]) + 0.01 * v)
                        for n, v in theta.items()
                    }
                w = {n: v - lr * 0.9**t * lam * (v - theta[n]) for n, v in w.items()}
            sent.append(w)
            assert_same(ran.up(t, "model", i), w, what=f"w {i}")
            assert_same(ran.personal[t][i], theta, what=f"theta {i}")
        received = combine([1 - beta, beta], [received, combine(share(CLIENTS), sent)])
        assert_same(ran.server[t]["model"], received)


def test_one_step_is_fedavg_with_a_smaller_step() -> None:
    """K = 1 and one mini-batch: theta = w - p g, so w moves by lr lambda p g."""
    lam, inner, lr = 4.0, 0.5, 0.1
    settings = {"batch_size": "full"}
    method = {"name": "pfedme", "lam": lam, "inner_steps": 1, "personal_lr": inner, "lr": lr}
    ours = run(methods.build(method | settings), TINY, NET)
    theirs = run(methods.build({"name": "fedavg", "lr": lr * lam * inner, **settings}), TINY, NET)
    assert_same(ours.server["model"], theirs.server["model"], tol=1e-12)


def test_the_personal_model_is_tested() -> None:
    """PFLlib tests the global model under that name; FL-bench never updates the personal one."""
    ran = Watched({"name": "pfedme", "lr": 0.05, "personal_lr": 0.1}, TINY, NET, 2)
    for i in range(4):
        assert_same(ran.personal[1][i], ran.mine[2][i]["theta"], tol=0)
        assert differ(ran.personal[1][i], ran.server[1]["model"], by=1e-4)
        assert differ(ran.personal[1][i], ran.personal[0][i], by=1e-4)
    accuracy = ran.rounds[1].clients
    assert (accuracy["loss_before"] != accuracy["loss_global"]).all()
    assert (accuracy["loss_before"] == accuracy["loss_after"]).all()


def test_the_global_model_moves_by_default() -> None:
    """PFLlib's default beta = 0 freezes it."""
    assert PFedMe().beta == 1.0
    settings = {"name": "pfedme", "lr": 0.05, "personal_lr": 0.1}
    moving = Watched(settings, TINY, NET, 1)
    assert differ(moving.server[0]["model"], START, by=1e-4)
    frozen = Watched({**settings, "beta": 0.0}, TINY, NET, 1)
    assert_same(frozen.server[0]["model"], START, tol=0)


def test_the_personal_model_stays() -> None:
    ran = Watched({"name": "pfedme"}, TINY, NET, 1)
    assert set(ran.fits[0].up) == {"model"}
    assert ran.rounds[0].bytes_up == ran.rounds[0].bytes_down


def test_strong_lambda_keeps_theta_near_w() -> None:
    """p lambda = 1: theta ends at w - p grad(theta): within p |grad| of its w."""
    method = {"name": "pfedme", "lam": 50.0, "personal_lr": 0.02, "batch_size": "full", "lr": 0.01}
    ran = Watched(method, TINY, NET, 1)
    theta = START
    for _ in range(5):
        theta = {n: START[n] - 0.02 * g for n, g in gradient(theta, CLIENTS[0]).items()}
    assert_same(ran.personal[0][0], theta)


def test_statistics_travel_with_the_model(ragged) -> None:
    ran = Watched({"name": "pfedme", "lr": 0.05}, ragged, SmallNet(norm=True), 1)
    assert ran.sim.server_model() is not None
    up, own = ran.fits[0].up["model"], ran.fits[0].mine["theta"]
    name = "body.1.running_mean"
    assert (up[name] == own[name]).all()
    assert (up["head.bias"] != own["head.bias"]).any()


@pytest.mark.parametrize("bad", [{"inner_steps": 0}, {"personal_lr": 0.0}, {"lam": -1.0}])
def test_bad_values_are_refused(bad: dict) -> None:
    with pytest.raises(UserError, match="must"):
        methods.build({"name": "pfedme", **bad})
