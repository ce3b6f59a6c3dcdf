"""FedAvg: the sample-weighted mean and every setting of local SGD against torch.optim."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from idiolect import methods
from idiolect.simulation.schedule import Stragglers
from tests.conftest import ENGINES, run
from tests.methods.plain import (
    CLIENTS,
    NET,
    START,
    TINY,
    TWINS,
    NormNet,
    State,
    assert_same,
    batches,
    combine,
    differ,
    federate,
    loss,
    seeded,
    sgd,
    share,
)
from tests.watched import Watched

FULL = {"lr": 0.2, "batch_size": "full"}
FIXED = {"lr": 0.2, "batch_size": 4, "order": "fixed"}


def reference(
    who: list[list[int]],
    *,
    batch: int | None = None,
    epochs: int = 1,
    drop: bool = False,
    lr_decay: float = 1.0,
    uniform: bool = False,
    by_class: bool = False,
    **how: Any,
) -> list[State]:
    """The global model after every round."""
    w, history = dict(START), []
    for t, ids in enumerate(who):
        trained = []
        for i in ids:
            client = CLIENTS[i]
            order = client.y.argsort(stable=True) if by_class else torch.arange(len(client))
            rows = [order[b] for b in batches(len(client), batch, epochs, drop)]
            trained.append(sgd(w, client, rows, lr=0.2 * lr_decay**t, **how))
        weights = [1 / len(ids)] * len(ids) if uniform else share([CLIENTS[i] for i in ids])
        w = combine(weights, trained)
        history.append(w)
    return history


EVERYONE = [[0, 1, 2, 3]] * 3
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "full_batch": (FULL, {}),
    "batches": (FIXED, {"batch": 4}),
    "epochs": ({**FIXED, "epochs": 3}, {"batch": 4, "epochs": 3}),
    "batch_larger_than_a_client": ({**FIXED, "batch_size": 7}, {"batch": 7}),
    "drop_last": ({**FIXED, "drop_last": True}, {"batch": 4, "drop": True}),
    "class_order": ({**FIXED, "order": "class"}, {"batch": 4, "by_class": True}),
    "weight_decay": ({**FIXED, "weight_decay": 0.1}, {"batch": 4, "decay": 0.1}),
    "momentum": ({**FIXED, "momentum": 0.9}, {"batch": 4, "momentum": 0.9}),
    "momentum_and_decay": (
        {**FIXED, "momentum": 0.5, "weight_decay": 0.1, "epochs": 2},
        {"batch": 4, "momentum": 0.5, "decay": 0.1, "epochs": 2},
    ),
    "lr_decay": ({**FIXED, "lr_decay": 0.5}, {"batch": 4, "lr_decay": 0.5}),
    "uniform": ({**FULL, "weighting": "uniform"}, {"uniform": True}),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", OPTIONS)
def test_option(case: str, engine: str) -> None:
    options, how = OPTIONS[case]
    ran = Watched({"name": "fedavg", **options}, TINY, NET, 3, engine=engine)
    for t, expected in enumerate(reference(EVERYONE, **how)):
        assert_same(ran.server[t]["model"], expected, what=f"round {t}")
        for i in range(4):
            assert_same(ran.personal[t][i], expected)


def test_options_really_change_the_result() -> None:
    results = {case: reference(EVERYONE, **how)[-1] for case, (_, how) in OPTIONS.items()}
    names = list(results)
    for k, a in enumerate(names):
        for b in names[k + 1 :]:
            assert differ(results[a], results[b], 1e-5), (a, b)


def test_partial_participation() -> None:
    who = [[0, 1, 3], [2], [0, 2, 3]]
    ran = Watched({"name": "fedavg", **FIXED}, TINY, NET, 3, schedule=who)
    for t, expected in enumerate(reference(who, batch=4)):
        assert_same(ran.server[t]["model"], expected, what=f"round {t}")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_shuffled_epoch_sees_every_sample_once(engine: str) -> None:
    """One-sample batches of a linear loss: the order does not matter, every sample must be there.
    With lr -> 0 the sum of steps is the sum of all gradients."""
    method = {"name": "local", "lr": 1e-7, "batch_size": 1}
    ran = Watched(method, TINY, NET, 1, engine=engine)
    fixed = Watched({**method, "order": "fixed"}, TINY, NET, 1, engine=engine)
    for i in range(4):
        for n in START:
            a, b = (r.personal[0][i][n] - START[n] for r in (ran, fixed))
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-12)
            assert not torch.equal(a, b)


def test_identical_clients_are_one_client() -> None:
    many = run(methods.build({"name": "fedavg", **FULL}), federate(TWINS), NET)
    alone = dict(START)
    for _ in range(3):
        alone = sgd(alone, TWINS[0], lr=0.2)
    assert_same(many.server["model"], alone, 1e-12)


def test_it_learns() -> None:
    ran = Watched({"name": "fedavg", **FULL}, TINY, NET, 30)
    before = sum(loss(START, c) for c in CLIENTS)
    after = sum(loss(ran.server[-1]["model"], c) for c in CLIENTS)
    assert after < 0.8 * before
    assert ran.rounds[-1].train_loss < ran.rounds[0].train_loss


def test_late_work_is_discarded() -> None:
    """FedAvg (Sync) of PLGA's Table 2: p idle rounds, one in vain, one that counts."""
    ran = Watched({"name": "fedavg", **FULL}, TINY, NET, 6, stragglers=Stragglers(periods=(1,)))
    assert [0 in r.started for r in ran.rounds] == [False, True, True] * 2
    assert [0 in r.arrived for r in ran.rounds] == [False, False, True] * 2
    who = [[1, 2, 3], [1, 2, 3], [0, 1, 2, 3]] * 2
    for t, expected in enumerate(reference(who)):
        assert_same(ran.server[t]["model"], expected, what=f"round {t}")


def test_batchnorm_statistics_are_averaged() -> None:
    ran = Watched({"name": "fedavg", **FULL}, TINY, seeded(NormNet), 1)
    means = [ran.up(0, "model", i)["body.1.running_mean"] for i in range(4)]
    expected = sum(a * m for a, m in zip(share(CLIENTS), means, strict=True))
    assert torch.allclose(ran.server[0]["model"]["body.1.running_mean"], expected, atol=1e-14)


@pytest.mark.parametrize("steps", [1, 2])
def test_steps_go_on_from_round_to_round(steps: int) -> None:
    """Mini-batches instead of epochs: each round takes the next ones, not the same again."""
    ran = Watched({"name": "local", **FIXED, "steps": steps}, TINY, NET, 3)
    for i, client in enumerate(CLIENTS):
        rows = batches(len(client), 4, 6)[: 3 * steps]
        assert_same(ran.personal[-1][i], sgd(START, client, rows, lr=0.2), what=f"client {i}")
