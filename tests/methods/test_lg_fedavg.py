"""LG-FedAvg: the body stays, the head is shared."""

from __future__ import annotations

import pytest

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
    combine,
    differ,
    sgd,
    share,
)
from tests.watched import Watched

FULL = {"lr": 0.2, "batch_size": "full", "momentum": 0.5, "epochs": 2}


@pytest.mark.parametrize("engine", ENGINES)
def test_two_rounds_by_hand(engine: str) -> None:
    ran = Watched({"name": "lg_fedavg", **FULL}, TINY, NET, 2, engine=engine)
    models = [dict(START) for _ in CLIENTS]
    for t in range(2):
        twice = [list(range(len(c))) for c in CLIENTS]
        models = [
            sgd(m, c, [rows, rows], lr=0.2, momentum=0.5)
            for m, c, rows in zip(models, CLIENTS, twice, strict=True)
        ]
        head = combine(share(CLIENTS), [{n: m[n] for n in HEAD} for m in models])
        models = [m | head for m in models]
        for i, model in enumerate(models):
            assert_same(ran.personal[t][i], model, what=f"client {i} round {t}")
    assert differ({n: models[0][n] for n in BODY}, {n: models[1][n] for n in BODY})


def test_only_the_head_travels() -> None:
    ran = Watched({"name": "lg_fedavg"}, TINY, NET, 1)
    assert set(ran.fits[0].up["base"]) == set(HEAD) == set(ran.downs[0]["base"])
    head = 8 * sum(START[n].numel() for n in HEAD)
    assert ran.rounds[0].bytes_up == ran.rounds[0].bytes_down == head * len(CLIENTS)


@pytest.mark.parametrize(("layers", "parent"), [("none", "fedavg"), ("all", "local")])
def test_reductions(layers: str, parent: str) -> None:
    ours = run(methods.build({"name": "lg_fedavg", "personal_layers": layers, **FULL}), TINY, NET)
    theirs = run(methods.build({"name": parent, **FULL}), TINY, NET)
    for i in range(len(CLIENTS)):
        assert_same(ours.personal_model(i), theirs.personal_model(i), tol=0.0)
