"""APFL: the mixture by hand, Local and FedAvg at its ends, the step of alpha."""

from __future__ import annotations

import pytest
import torch

from idiolect import methods
from idiolect.errors import UserError
from idiolect.methods.apfl import APFL
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
    minus,
    share,
    vector,
)
from tests.watched import Watched


def mixture(alpha: float, v: dict, w: dict) -> dict:
    return combine([alpha, 1 - alpha], [v, w])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("adaptive", [False, True])
def test_three_rounds_by_hand(engine: str, adaptive: bool) -> None:
    lr = 0.3
    method = {
        "name": "apfl",
        "alpha": 0.3,
        "adaptive": adaptive,
        "lr": lr,
        "epochs": 2,
        "batch_size": "full",
    }
    ran = Watched(method, TINY, NET, 3, engine=engine)
    received, own, alpha = START, [START] * 4, [0.3] * 4
    for t in range(3):
        sent = []
        for i, c in enumerate(CLIENTS):
            w, v = received, own[i]
            if adaptive:
                slope = vector(gradient(mixture(alpha[i], v, w), c)) @ vector(minus(v, w))
                alpha[i] = min(1.0, max(0.0, alpha[i] - lr * float(slope)))
            for rows in batches(len(c), None, epochs=2):
                at_w, at_mix = gradient(w, c, rows), gradient(mixture(alpha[i], v, w), c, rows)
                w = {n: w[n] - lr * at_w[n] for n in w}
                v = {n: v[n] - lr * alpha[i] * at_mix[n] for n in v}
            sent.append(w)
            own[i] = v
            assert_same(ran.up(t, "model", i), w)
            assert_same(ran.mine[t + 1][i]["v"], v)
            assert float(ran.mine[t + 1][i]["alpha"]) == pytest.approx(alpha[i], abs=1e-12)
        received = combine(share(CLIENTS), sent)
        for i in range(4):
            assert_same(ran.personal[t][i], mixture(alpha[i], own[i], received))
            trained = {n: v[i] for n, v in ran.fits[t].trained.items()}
            assert_same(trained, mixture(alpha[i], own[i], sent[i]))
    if adaptive:
        assert len({round(a, 9) for a in alpha}) == 4
        assert 0.3 not in alpha


def test_alpha_one_is_local_to_the_bit() -> None:
    settings = {"lr": 0.2, "batch_size": 3, "epochs": 2, "weight_decay": 0.01}
    ours = run(methods.build({"name": "apfl", "alpha": 1.0, **settings}), TINY, NET)
    alone = run(methods.build({"name": "local", **settings}), TINY, NET)
    for i in range(4):
        assert_same(ours.personal_model(i), alone.personal_model(i), tol=0)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_the_global_model_is_fedavg_to_the_bit(alpha: float) -> None:
    settings = {"lr": 0.2, "batch_size": 3, "epochs": 2}
    ours = run(methods.build({"name": "apfl", "alpha": alpha, **settings}), TINY, NET)
    theirs = run(methods.build({"name": "fedavg", **settings}), TINY, NET)
    assert_same(ours.server["model"], theirs.server["model"], tol=0)
    if alpha == 0:
        assert_same(ours.personal_model(1), theirs.personal_model(1), tol=0)


def test_default_is_a_mixture() -> None:
    """PFLlib's APFL starts at alpha = 1, which is Local."""
    assert APFL().alpha == 0.5
    ours = run(methods.build({"name": "apfl", "lr": 0.2}), TINY, NET)
    assert differ(ours.personal_model(0), ours.server["model"])


def test_alpha_stays_between_zero_and_one() -> None:
    method = {"name": "apfl", "alpha": 0.9, "adaptive": True, "lr": 3.0, "batch_size": "full"}
    ran = Watched(method, TINY, NET, 4)
    alphas = torch.tensor([float(ran.mine[t][i]["alpha"]) for t in range(5) for i in range(4)])
    assert alphas.min() >= 0
    assert alphas.max() == 1
    assert torch.equal(ran.logs(3)["alpha"], alphas[-4:].double())


@pytest.mark.parametrize("engine", ENGINES)
def test_learning_alpha_leaves_statistics_alone(engine: str, ragged) -> None:
    """One full pass updates each running mean once, adaptive or not."""
    net = SmallNet(norm=True)
    means = []
    for adaptive in (False, True):
        method = {"name": "apfl", "adaptive": adaptive, "batch_size": "full", "lr": 0.1}
        ran = Watched(method, ragged, net, 1, engine=engine)
        means.append(ran.mine[1][0]["stats"]["body.1.running_mean"])
    assert torch.equal(*means)  # in the first round v = w, so alpha does not move


def test_alpha_outside_is_refused() -> None:
    with pytest.raises(UserError, match=r"method\.alpha must be at least 0 and at most 1"):
        methods.build({"name": "apfl", "alpha": 1.5})
