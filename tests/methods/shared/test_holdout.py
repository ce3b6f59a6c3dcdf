"""Parts of clients' own samples: sizes, the same lot however clients are grouped, work on them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from idiolect.core.local import Local
from idiolect.core.method import cross_entropy
from idiolect.data import Federation
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.shared import holdout
from tests.conftest import ENGINES, simulation
from tests.methods.plain import (
    CLIENTS,
    NET,
    START,
    TINY,
    Client,
    assert_same,
    draw_clients,
    federate,
    gradient,
    loss,
    sgd,
)


def whole(engine: str, ids: list[int], federation: Federation = TINY) -> Local:
    local: Local = simulation(FedAvg(), federation, NET, 1, engine=engine).engine.local(ids, 0)
    return local


def held(part: Any) -> list[list[int]]:
    """Positions of a part's samples among all that the client trains on."""
    found = zip(part.ids, part.index_host.split(part.lengths), strict=True)
    return [(rows - part.samples.parts["train"][i][0]).tolist() for i, rows in found]


def start(local: Local) -> dict[str, torch.Tensor]:
    return {n: v.expand(len(local.ids), *v.shape) for n, v in START.items()}


def test_sizes() -> None:
    local = whole("stacked", [0, 1, 2, 3])
    inside, outside = holdout.split(local, 0.4, "lot")
    assert inside.lengths == [2, 4, 2, 3] and inside.sizes.tolist() == [2, 4, 2, 3]
    for a, b, every in zip(held(inside), held(outside), held(local), strict=True):
        assert sorted(a + b) == every and a == sorted(a) and b == sorted(b)
    assert (inside.counts + outside.counts).tolist() == local.counts.tolist()


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_no_division(share: float) -> None:
    local = whole("stacked", [1, 2])
    assert holdout.split(local, share, "lot") == (local, local)


def test_one_or_two_samples() -> None:
    local = whole("stacked", [0, 1], federate(draw_clients((1, 2))))
    inside, outside = (held(part) for part in holdout.split(local, 0.2, "lot"))
    assert inside[0] == outside[0] == [0]
    assert sorted(inside[1] + outside[1]) == [0, 1]


def test_the_same_lot_alone_and_together() -> None:
    together = held(holdout.split(whole("stacked", [0, 1, 2, 3]), 0.5, "lot")[0])
    alone = [held(holdout.split(whole("loop", [i]), 0.5, "lot")[0])[0] for i in range(4)]
    assert together == alone
    assert together != held(holdout.split(whole("loop", [0, 1, 2, 3]), 0.5, "x")[0])


@pytest.mark.parametrize("engine", ENGINES)
def test_work_on_a_part_is_work_on_its_samples_alone(engine: str) -> None:
    """Losses, gradients and steps; what is counted and logged is counted for the clients."""
    local = whole(engine, [1] if engine == "loop" else [1, 3])
    part, _ = holdout.split(local, 0.5, "lot")
    own = [
        Client(CLIENTS[i].x[rows], CLIENTS[i].y[rows])
        for i, rows in zip(local.ids, held(part), strict=True)
    ]
    got = holdout.loss(part, start(local))
    slope, value, _ = part.grad(cross_entropy, start(local))
    trained = part.sgd(cross_entropy, start(local), lr=0.2, batch_size=2, order="fixed")
    part.log(seen=part.sizes)
    for k, client in enumerate(own):
        assert float(got[k]) == pytest.approx(loss(START, client), abs=1e-12)
        assert float(value[k]) == pytest.approx(loss(START, client), abs=1e-12)
        assert_same({n: v[k] for n, v in slope.items()}, gradient(START, client), 1e-12)
        batches = list(torch.arange(len(client)).split(2))
        assert_same(
            {n: v[k] for n, v in trained.params.items()}, sgd(START, client, batches, lr=0.2)
        )
        assert int(trained.steps[k]) == len(batches)
    assert local.logs["seen"].tolist() == [len(c) for c in own]
    assert local.samples_seen.tolist() == [2 * len(c) for c in own]
    assert local.train_loss.tolist() == trained.loss.tolist()
    assert local.lengths == [len(CLIENTS[i]) for i in local.ids]


@pytest.mark.parametrize("engine", ENGINES)
def test_batch_norms_see_the_part_alone(engine: str) -> None:
    """Samples that are set apart must not reach the model that is judged on them."""
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3)).double()
    sim = simulation(FedAvg(), TINY, net, 1, engine=engine)
    part, _ = holdout.split(sim.engine.local([1], 0), 0.5, "lot")
    params = {n: v[None] for n, v in sim.start_tree.items()}
    after = part.sgd(cross_entropy, params, lr=0.1, batch_size="full").params
    expected = 0.1 * CLIENTS[1].x[held(part)[0]].mean(0)
    torch.testing.assert_close(after["0.running_mean"][0], expected)


def test_halves() -> None:
    local = whole("stacked", [0, 1, 2], federate(draw_clients((4, 3, 1))))
    even, odd = (held(part) for part in holdout.halves(local))
    assert even == [[0, 2], [0, 2], [0]] and odd == [[1, 3], [1], [0]]


def test_a_loss_has_no_own_weights() -> None:
    """The mean over a part is that of its samples, each counted once."""
    local = whole("stacked", [0])
    part, _ = holdout.split(local, 0.5, "lot")
    logits = part.forward(lambda net, params, x, y: net(params, x), start(local)).values
    expected = F.cross_entropy(logits, CLIENTS[0].y[held(part)[0]])
    torch.testing.assert_close(holdout.loss(part, start(local))[0], expected)
