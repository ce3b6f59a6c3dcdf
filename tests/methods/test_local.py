"""Local training alone: plain SGD per client, and nothing on the wire."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import ENGINES
from tests.methods.plain import (
    CLIENTS,
    NET,
    START,
    TINY,
    NormNet,
    assert_same,
    batches,
    model_with,
    seeded,
    sgd,
)
from tests.watched import Watched

FIXED = {"lr": 0.2, "batch_size": 4, "order": "fixed"}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_client_trains_alone(engine: str) -> None:
    ran = Watched({"name": "local", "epochs": 2, **FIXED}, TINY, NET, 3, engine=engine)
    for i, client in enumerate(CLIENTS):
        w = dict(START)
        for t in range(3):
            w = sgd(w, client, batches(len(client), 4, 2), lr=0.2)
            assert_same(ran.personal[t][i], w, what=f"round {t} client {i}")


def test_who_is_not_asked_stays_as_it_was() -> None:
    ran = Watched({"name": "local", **FIXED}, TINY, NET, 2, schedule=[[1], [3]])
    assert_same(ran.personal[-1][0], START, 0)
    for i in (1, 3):
        assert_same(
            ran.personal[-1][i], sgd(START, CLIENTS[i], batches(len(CLIENTS[i]), 4), lr=0.2)
        )


def test_nothing_is_sent() -> None:
    ran = Watched({"name": "local", **FIXED}, TINY, NET, 2)
    assert [(r.bytes_up, r.bytes_down) for r in ran.rounds] == [(0, 0), (0, 0)]
    assert ran.fits[0].up == {}


def test_samples_are_counted() -> None:
    ran = Watched({"name": "local", "epochs": 3, **FIXED}, TINY, NET, 1)
    assert ran.rounds[0].samples == 3 * sum(len(c) for c in CLIENTS)


@pytest.mark.parametrize("engine", ENGINES)
def test_batchnorm_is_that_of_the_plain_module(engine: str) -> None:
    net = seeded(NormNet)
    method = {"name": "local", "lr": 0.2, "batch_size": 3, "order": "fixed"}
    ran = Watched(method, TINY, net, 2, engine=engine)
    for i, client in enumerate(CLIENTS):
        if len(client) % 3 == 1:
            continue
        model = model_with(net.state_dict(), NormNet).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        for batch in batches(len(client), 3, 2):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(client.x[batch]), client.y[batch]).backward()
            optimizer.step()
        state = {n: v for n, v in model.state_dict().items() if "tracked" not in n}
        assert_same(ran.personal[-1][i], state, what=f"client {i}")
