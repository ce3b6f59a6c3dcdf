"""FedRep: head epochs, then body epochs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from idiolect import methods
from tests.conftest import ENGINES, run
from tests.methods.plain import (
    BODY,
    CLIENTS,
    HEAD,
    NET,
    START,
    TINY,
    assert_same,
    batches,
    combine,
    differ,
    sgd,
    share,
)
from tests.watched import Watched

FIXED = {"lr": 0.2, "batch_size": 4, "momentum": 0.5, "order": "fixed"}


@pytest.mark.parametrize("engine", ENGINES)
def test_two_rounds_by_hand(engine: str) -> None:
    ran = Watched(
        {"name": "fedrep", "head_epochs": 3, "epochs": 2, **FIXED}, TINY, NET, 2, engine=engine
    )
    how = {"lr": 0.2, "momentum": 0.5}
    models = [dict(START) for _ in CLIENTS]
    for t in range(2):
        for i, client in enumerate(CLIENTS):
            n = len(client)
            first = sgd(models[i], client, batches(n, 4, 3), only=HEAD, **how)
            models[i] = sgd(first, client, batches(n, 4, 2), only=BODY, **how)
        body = combine(share(CLIENTS), [{n: m[n] for n in BODY} for m in models])
        models = [m | body for m in models]
        for i, model in enumerate(models):
            assert_same(ran.personal[t][i], model, what=f"client {i} round {t}")


def test_without_head_epochs_it_is_fedbabu() -> None:
    step = {"lr": 0.2, "batch_size": 4, "momentum": 0.5}
    ours = run(methods.build({"name": "fedrep", "head_epochs": 0, **step}), TINY, NET)
    theirs = run(methods.build({"name": "fedbabu", "fine_tune_epochs": 0, **step}), TINY, NET)
    assert_same(ours.personal_model(2), theirs.personal_model(2), tol=0.0)


def test_a_client_smaller_than_one_batch_trains_both_parts() -> None:
    ran = Watched({"name": "fedrep", "batch_size": 64, "drop_last": True}, TINY, NET, 1)
    for i in range(len(CLIENTS)):
        assert differ(ran.mine[1][i]["own"], {n: START[n] for n in HEAD})
        assert differ(ran.up(0, "base", i), {n: START[n] for n in BODY})


def test_a_linear_model_is_all_head() -> None:
    linear = nn.Linear(3, 3).double()
    step = {"lr": 0.2, "batch_size": "full", "momentum": 0.0}
    ours = run(methods.build({"name": "fedrep", "head_epochs": 2, **step}), TINY, linear)
    theirs = run(methods.build({"name": "local", "epochs": 2, **step}), TINY, linear)
    assert torch.equal(ours.personal_model(0)["weight"], theirs.personal_model(0)["weight"])
