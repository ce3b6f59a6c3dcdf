"""FedAvgM: two rounds by hand, and FedAvg at beta = 0."""

from __future__ import annotations

import pytest

from idiolect import methods
from idiolect.errors import UserError
from tests.conftest import ENGINES, SmallNet, run
from tests.methods.plain import CLIENTS, NET, START, TINY, assert_same, combine, minus, sgd, share
from tests.watched import Watched

FULL = {"lr": 0.2, "batch_size": "full"}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("eta", [1.0, 0.7])
def test_three_rounds_by_hand(engine: str, nesterov: bool, eta: float) -> None:
    beta = 0.6
    method = {"name": "fedavgm", "beta": beta, "nesterov": nesterov, "server_lr": eta, **FULL}
    ran = Watched(method, TINY, NET, 3, engine=engine)
    w, v = START, {n: 0 * x for n, x in START.items()}
    for t in range(3):
        mean = combine(share(CLIENTS), [sgd(w, c, lr=0.2) for c in CLIENTS])
        delta = minus(w, mean)
        v = {n: beta * v[n] + delta[n] for n in v}
        push = {n: delta[n] + beta * v[n] for n in v} if nesterov else v
        w = {n: w[n] - eta * push[n] for n in w}
        assert_same(ran.server[t]["model"], w, what=f"round {t}")
        assert_same(ran.server[t]["velocity"], v, what=f"velocity {t}")
        assert_same(ran.personal[t][2], w)


def test_without_momentum_is_fedavg_to_the_bit() -> None:
    settings = {"lr": 0.2, "batch_size": 3}
    ours = run(methods.build({"name": "fedavgm", "beta": 0.0, **settings}), TINY, NET)
    theirs = run(methods.build({"name": "fedavg", **settings}), TINY, NET)
    assert_same(ours.server["model"], theirs.server["model"], tol=0)


def test_default_momentum_changes_the_second_round() -> None:
    ours = Watched({"name": "fedavgm", **FULL}, TINY, NET, 2)
    theirs = Watched({"name": "fedavg", **FULL}, TINY, NET, 2)
    gap = ours.server[1]["model"]["head.bias"] - theirs.server[1]["model"]["head.bias"]
    assert gap.abs().max() > 1e-3


def test_statistics_have_no_momentum(ragged) -> None:
    """A running variance pushed past its mean could turn negative."""
    ran = Watched({"name": "fedavgm", "beta": 0.9, "lr": 0.1}, ragged, SmallNet(norm=True), 3)
    assert not any("running" in n for n in ran.server[-1]["velocity"])
    sizes = ragged.sizes("train").double()
    for n in ("body.1.running_mean", "body.1.running_var"):
        mean = (sizes / sizes.sum()) @ ran.fits[-1].up["model"][n]
        assert (ran.server[-1]["model"][n] - mean).abs().max() < 1e-12


def test_beta_must_be_below_one() -> None:
    with pytest.raises(UserError, match=r"method\.beta must be at least 0 and below 1"):
        methods.build({"name": "fedavgm", "beta": 1.0})
