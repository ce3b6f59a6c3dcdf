"""Parts of a client's own samples: sizes, scale, and the same lot however clients are grouped."""

from __future__ import annotations

import pytest
import torch

from idiolect.methods.fedavg import FedAvg
from idiolect.methods.shared import holdout
from tests.conftest import ENGINES, simulation
from tests.methods.plain import CLIENTS, NET, START, TINY, draw_clients, federate, loss


def parts(engine: str, ids: list[int], share: float, federation=TINY, purpose: str = "lot"):
    sim = simulation(FedAvg(), federation, NET, 1, engine=engine)
    local = sim.engine.local(ids, 0)
    inside, outside = holdout.split(local, share, purpose)
    return local, inside, outside


def test_sizes_and_scale() -> None:
    _, inside, outside = parts("stacked", [0, 1, 2, 3], 0.4)
    at = 0
    for n, m in zip((6, 9, 5, 8), (2, 4, 2, 3), strict=True):
        a, b = inside.values[at : at + n], outside.values[at : at + n]
        assert (a > 0).sum() == m and ((a > 0) != (b > 0)).all()
        assert a[a > 0].tolist() == [n / m] * m
        assert b[b > 0].tolist() == pytest.approx([n / (n - m)] * (n - m))
        at += n


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_no_division(share: float) -> None:
    _, inside, outside = parts("stacked", [1, 2], share)
    assert inside.values.tolist() == outside.values.tolist() == [1.0] * 14


def test_one_or_two_samples() -> None:
    federation = federate(draw_clients((1, 2)))
    _, inside, outside = parts("stacked", [0, 1], 0.2, federation)
    assert (inside.values[0], outside.values[0]) == (1, 1)
    assert sorted(inside.values[1:].tolist()) == sorted(outside.values[1:].tolist()) == [0, 2]


def test_the_same_lot_alone_and_together() -> None:
    _, together, _ = parts("stacked", [0, 1, 2, 3], 0.5)
    alone = [parts("loop", [i], 0.5)[1].values for i in range(4)]
    assert torch.equal(together.values, torch.cat(alone))
    assert not torch.equal(
        together.values, parts("stacked", [0, 1, 2, 3], 0.5, purpose="x")[1].values
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_loss_of_a_part(engine: str) -> None:
    ids = [1] if engine == "loop" else [1, 3]
    local, inside, _ = parts(engine, ids, 0.5)
    start = {n: v.expand(len(ids), *v.shape) for n, v in START.items()}
    got = holdout.loss(local, start, inside)
    at = 0
    for k, i in enumerate(ids):
        chosen = inside.values[at : at + len(CLIENTS[i])] > 0
        whole = CLIENTS[i]
        part = type(whole)(whole.x[chosen], whole.y[chosen])
        assert float(got[k]) == pytest.approx(loss(START, part), abs=1e-12)
        at += len(whole)


def test_halves() -> None:
    sim = simulation(FedAvg(), federate(draw_clients((4, 3, 1))), NET, 1)
    local = sim.engine.local([0, 1, 2], 0)
    even, odd = holdout.halves(local)
    assert even.values.tolist() == [2, 0, 2, 0, 1.5, 0, 1.5, 1]
    assert odd.values.tolist() == [0, 2, 0, 2, 0, 3, 0, 1]
    assert holdout.everything(local).values.tolist() == [1] * 8
