"""Both engines against plain PyTorch: batches, BatchNorm and evaluation. The loop engine is the
reference for everything else, so it must be right itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from idiolect import methods
from tests.conftest import ENGINES, SmallNet, run, simulation
from tests.engine.engines import LOCAL, RAGGED
from tests.methods.plain import (
    CLIENTS,
    NET,
    START,
    TINY,
    NormNet,
    assert_same,
    batches,
    draw_clients,
    federate,
    model_with,
    seeded,
    sgd,
)


@pytest.mark.parametrize("engine", ENGINES)
def test_batchnorm_with_one_sample_left_over(engine: str) -> None:
    """9 samples in batches of 4: the ninth joins the second batch, for it has no variance."""
    net = seeded(NormNet)
    method = {"name": "local", "lr": 0.2, "batch_size": 4, "order": "fixed", "epochs": 2}
    sim = run(methods.build(method), TINY, net, 1, engine=engine)
    assert len(CLIENTS[1]) == 9
    for i, rows in (
        (0, [(0, 4), (4, 6)]),
        (1, [(0, 4), (4, 9)]),
        (2, [(0, 5)]),
        (3, [(0, 4), (4, 8)]),
    ):
        model = model_with(net.state_dict(), NormNet).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        for a, b in rows * 2:
            optimizer.zero_grad()
            F.cross_entropy(model(CLIENTS[i].x[a:b]), CLIENTS[i].y[a:b]).backward()
            optimizer.step()
        expected = {n: v for n, v in model.state_dict().items() if "tracked" not in n}
        assert_same(sim.personal_model(i), expected, 1e-10, f"client {i}")


@pytest.mark.parametrize("engine", ENGINES)
def test_exported_batchnorm_model_predicts_the_same(engine: str) -> None:
    """The plain module with the exported state gives the accuracy the run reported."""
    net = seeded(lambda: SmallNet(norm=True))  # type: ignore[arg-type]
    sim = run(methods.build(LOCAL), RAGGED, net, 1, engine=engine)
    net = seeded(lambda: SmallNet(norm=True))  # type: ignore[arg-type]
    for i in range(RAGGED.n_clients):
        net.load_state_dict(sim.personal_model(i))
        at = RAGGED.test[i]
        hits = (net.eval()(RAGGED.x[at]).argmax(1) == RAGGED.y[at]).double().mean()
        assert float(hits) == pytest.approx(sim.scores.columns["accuracy_before"][i])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": "full"},
        {"batch_size": 100},
        {"batch_size": 4},
        {"batch_size": 4, "drop_last": True},
        {"batch_size": 5, "drop_last": True, "epochs": 3},
        {"batch_size": 1},
    ],
    ids=str,
)
def test_batches_are_those_of_plain_torch(settings: dict[str, Any], engine: str) -> None:
    """Clients of 6, 9, 5 and 8 samples; a client smaller than one batch keeps its only batch."""
    method = methods.build({"name": "local", "lr": 0.2, "order": "fixed", **settings})
    sim = run(method, TINY, NET, 1, engine=engine)
    size = None if settings["batch_size"] == "full" else settings["batch_size"]
    seen = 0
    for i, client in enumerate(CLIENTS):
        drop = settings.get("drop_last", False)
        rows = batches(len(client), size, settings.get("epochs", 1), drop)
        seen += sum(len(b) for b in rows)
        assert_same(sim.personal_model(i), sgd(START, client, rows, lr=0.2), what=f"client {i}")
    again = simulation(method, TINY, NET, 1, engine=engine)
    assert int(np.sum(again.step().samples)) == seen


@pytest.mark.parametrize("engine", ENGINES)
def test_class_order(engine: str) -> None:
    settings = {"name": "local", "lr": 0.2, "order": "class", "batch_size": 4}
    sim = run(methods.build(settings), TINY, NET, 1, engine=engine)
    for i, client in enumerate(CLIENTS):
        order = client.y.argsort(stable=True)
        rows = [order[b] for b in batches(len(client), 4)]
        assert_same(sim.personal_model(i), sgd(START, client, rows, lr=0.2), what=f"client {i}")


@pytest.mark.parametrize("engine", ENGINES)
def test_one_sample_is_enough(engine: str) -> None:
    federation = federate(draw_clients((1, 4)))
    sim = run(methods.build(LOCAL), federation, NET, 1, engine=engine)
    assert bool(torch.isfinite(sim.personal_model(0)["head.weight"]).all())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_single_client(engine: str) -> None:
    federation = federate(CLIENTS[:1])
    method = methods.build({"name": "fedavg", "lr": 0.2, "batch_size": "full"})
    sim = run(method, federation, NET, 2, engine=engine)
    expected = sgd(sgd(START, CLIENTS[0], lr=0.2), CLIENTS[0], lr=0.2)
    assert_same(sim.personal_model(0), expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_evaluation_is_that_of_plain_torch(engine: str) -> None:
    net = seeded(SmallNet)
    sim = run(methods.build(LOCAL), RAGGED, net, 1, engine=engine)
    for i in range(RAGGED.n_clients):
        net.load_state_dict(sim.personal_model(i))
        at = RAGGED.test[i]
        with torch.no_grad():
            logits = net(RAGGED.x[at])
        hits = (logits.argmax(1) == RAGGED.y[at]).double().mean()
        assert sim.scores.columns["accuracy_before"][i] == pytest.approx(float(hits))
        value = F.cross_entropy(logits, RAGGED.y[at])
        assert sim.scores.columns["loss_before"][i] == pytest.approx(float(value), rel=1e-10)
