"""Ditto: parity with PFLlib, both orders by hand, Local and FedAvg hidden in it."""

from __future__ import annotations

import pytest
import torch

from idiolect import methods
from idiolect.core import tree
from idiolect.errors import UserError
from idiolect.methods.ditto import Ditto
from tests.conftest import ENGINES, Golden, SmallNet, assert_close, run
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
    share,
)
from tests.watched import Watched


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("personal_epochs", [0, 2])
def test_golden(engine: str, personal_epochs: int, golden_federation, golden_start) -> None:
    g = Golden("pfllib_ditto_mu0.1")
    method = {
        "name": "ditto",
        "lam": float(g["hyper/mu"]),
        "lr": 0.1,
        "epochs": 2,
        "batch_size": "full",
        "personal_epochs": personal_epochs,
    }
    ran = Watched(method, golden_federation, SmallNet(), 3, engine=engine, init=golden_start)
    for r in (1, 2, 3):
        assert_close(ran.server[r - 1]["model"], g.tree(f"round{r}/server"), what=f"server {r}")
        for i in range(4):
            assert_close(ran.up(r - 1, "model", i), g.tree(f"round{r}/client{i}/local"))
            assert_close(ran.personal[r - 1][i], g.tree(f"round{r}/client{i}/personal"))
        accuracy = torch.from_numpy(ran.rounds[r - 1].clients["accuracy_before"])
        assert torch.allclose(accuracy, g[f"round{r}/test_acc_personal"].double())


def personal_steps(v: dict, w: dict, client, lam: float, lr: float, steps: int) -> dict:  # type: ignore[no-untyped-def]
    for _ in range(steps):
        g = gradient(v, client)
        v = {n: v[n] - lr * (g[n] + lam * (v[n] - w[n])) for n in v}
    return v


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_two_rounds_by_hand(engine: str, when: str) -> None:
    lam, lr, personal_lr = 0.8, 0.2, 0.3
    method = {
        "name": "ditto",
        "lam": lam,
        "lr": lr,
        "personal_lr": personal_lr,
        "personal_epochs": 3,
        "personal_steps": when,
        "batch_size": "full",
        "lr_decay": 0.5,
    }
    ran = Watched(method, TINY, NET, 2, engine=engine)
    w, own = START, [START] * 4
    for t in range(2):
        decay = 0.5**t
        trained = [sgd(w, c, lr=lr * decay) for c in CLIENTS]
        towards = [w] * 4 if when == "before" else trained
        own = [
            personal_steps(own[i], towards[i], c, lam, personal_lr * decay, 3)
            for i, c in enumerate(CLIENTS)
        ]
        w = combine(share(CLIENTS), trained)
        assert_same(ran.server[t]["model"], w)
        for i in range(4):
            assert_same(ran.personal[t][i], own[i], what=f"{when} client {i} round {t}")


def test_lambda_zero_is_local_to_the_bit() -> None:
    settings = {"lr": 0.2, "batch_size": 3, "epochs": 2}
    ours = run(methods.build({"name": "ditto", "lam": 0.0, **settings}), TINY, NET)
    alone = run(methods.build({"name": "local", **settings}), TINY, NET)
    for i in range(4):
        assert_same(ours.personal_model(i), alone.personal_model(i), tol=0)


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_is_sent_is_fedavg_to_the_bit(when: str) -> None:
    """The personal model leaves no trace in the global one, whatever lambda is."""
    settings = {"lr": 0.2, "batch_size": 3, "epochs": 2}
    method = {"name": "ditto", "lam": 2.0, "personal_steps": when, **settings}
    ours = Watched(method, TINY, NET, 3)
    theirs = Watched({"name": "fedavg", **settings}, TINY, NET, 3)
    assert_same(ours.server[-1]["model"], theirs.server[-1]["model"], tol=0)
    assert ours.rounds[-1].bytes_up == theirs.rounds[-1].bytes_up
    assert set(ours.fits[-1].up) == {"model"}


def test_default_is_not_local() -> None:
    """PFLlib's Ditto has mu = 0 by default."""
    assert Ditto().lam == 0.1
    settings = {"lr": 0.2, "batch_size": 3, "epochs": 3}
    ours = run(methods.build({"name": "ditto", **settings}), TINY, NET)
    alone = run(methods.build({"name": "local", **settings}), TINY, NET)
    assert differ(ours.personal_model(0), alone.personal_model(0), by=1e-4)


def test_large_lambda_holds_the_personal_model_near_the_global_one() -> None:
    """lr lambda = 1: v ends one gradient step from the received model."""
    method = {"name": "ditto", "lam": 5.0, "lr": 0.2, "epochs": 4, "batch_size": "full"}
    ran = Watched(method, TINY, NET, 2)
    received = ran.server[0]["model"]
    own = tree.clone(ran.personal[0][1])
    for _ in range(4):
        own = {n: received[n] - 0.2 * g for n, g in gradient(own, CLIENTS[1]).items()}
    assert_same(ran.personal[1][1], own)


def test_absent_clients_keep_theirs() -> None:
    ran = Watched({"name": "ditto", "lr": 0.2}, TINY, NET, 2, schedule=[[0, 1], [2, 3]])
    assert_same(ran.personal[0][2], START, tol=0)
    assert_same(ran.personal[1][0], ran.personal[0][0], tol=0)


def test_negative_lambda_is_refused() -> None:
    with pytest.raises(UserError, match=r"method\.lam must be at least 0"):
        methods.build({"name": "ditto", "lam": -1.0})
