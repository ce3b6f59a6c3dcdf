"""FedProx: its steps by hand, FedAvg at mu = 0, and a default that is not that."""

from __future__ import annotations

import pytest

from idiolect import methods
from idiolect.errors import UserError
from idiolect.methods.fedprox import FedProx
from tests.conftest import ENGINES, run
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
def test_steps_by_hand(engine: str) -> None:
    """w <- w - lr (grad F(w) + mu (w - w_t)), two epochs of ragged batches."""
    mu, lr = 0.7, 0.2
    method = {"name": "fedprox", "mu": mu, "lr": lr, "epochs": 2, "batch_size": 4, "order": "fixed"}
    ran = Watched(method, TINY, NET, 2, engine=engine)
    received = START
    for t in range(2):
        trained = []
        for c in CLIENTS:
            w = received
            for rows in batches(len(c), 4, epochs=2):
                g = gradient(w, c, rows)
                w = {n: w[n] - lr * (g[n] + mu * (w[n] - received[n])) for n in w}
            trained.append(w)
        for i, w in enumerate(trained):
            assert_same(ran.up(t, "model", i), w, what=f"client {i}")
        received = combine(share(CLIENTS), trained)
        assert_same(ran.server[t]["model"], received)


def test_mu_zero_is_fedavg_to_the_bit() -> None:
    settings = {"lr": 0.2, "batch_size": 3, "epochs": 2}
    ours = run(methods.build({"name": "fedprox", "mu": 0.0, **settings}), TINY, NET)
    theirs = run(methods.build({"name": "fedavg", **settings}), TINY, NET)
    assert_same(ours.server["model"], theirs.server["model"], tol=0)


def test_default_is_not_fedavg() -> None:
    """PFLlib's FedProx has mu = 0 by default."""
    assert FedProx().mu == 0.1
    settings = {"lr": 0.2, "batch_size": 3, "epochs": 2}
    ours = run(methods.build({"name": "fedprox", **settings}), TINY, NET)
    theirs = run(methods.build({"name": "fedavg", **settings}), TINY, NET)
    assert differ(ours.server["model"], theirs.server["model"], by=1e-4)


def test_strong_pull_stays() -> None:
    """With lr mu = 1 every step but the last gradient's is undone: |w - w_t| = lr |grad|."""
    method = {"name": "fedprox", "mu": 10.0, "lr": 0.1, "epochs": 5, "batch_size": "full"}
    ran = Watched(method, TINY, NET, 1)
    for i, c in enumerate(CLIENTS):
        w = START
        for _ in range(5):
            w = {n: START[n] - 0.1 * g for n, g in gradient(w, c).items()}
        assert_same(ran.up(0, "model", i), w)


def test_negative_mu_is_refused() -> None:
    with pytest.raises(UserError, match=r"method\.mu must be at least 0"):
        methods.build({"name": "fedprox", "mu": -0.1})
