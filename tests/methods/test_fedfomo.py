"""FedFomo: weights and rounds in plain PyTorch, who is sent what, reductions, traffic."""

from __future__ import annotations

import pytest
import torch

from idiolect import methods
from idiolect.core.method import Server
from idiolect.errors import UserError
from idiolect.methods.fedfomo import FedFomo
from idiolect.methods.shared import holdout
from tests.conftest import ENGINES, simulation
from tests.methods.plain import (
    CLIENTS,
    NET,
    START,
    TINY,
    Client,
    State,
    assert_same,
    combine,
    differ,
    federate,
    loss,
    minus,
    sgd,
    vector,
)
from tests.watched import Watched

FULL = {"lr": 0.2, "batch_size": "full", "epochs": 2}
ALL = {"name": "fedfomo", "models": 3, "val_share": 0.0, **FULL}


def first_order(previous: State, candidate: State, client: Client) -> float:
    length = float(vector(minus(candidate, previous)).norm())
    return (loss(previous, client) - loss(candidate, client)) / length if length else 0.0


@pytest.mark.parametrize("engine", ENGINES)
def test_rounds(engine: str) -> None:
    ran = Watched(ALL, TINY, NET, 4, engine=engine)
    own, previous = [dict(START)] * 4, [dict(START)] * 4
    affinity = torch.zeros(4, 4, dtype=torch.float64)
    mixed_with_others = 0
    for t in range(4):
        begin, weights = [], torch.eye(4, dtype=torch.float64)
        for i, c in enumerate(CLIENTS):
            raw = [first_order(previous[i], own[j], c) for j in range(4)]
            raw = torch.tensor(raw, dtype=torch.float64)
            affinity[i] += raw * (torch.arange(4) != i)
            good = raw.clamp_min(0)
            if good.sum() > 0:
                weights[i] = good / good.sum()
            begin.append(combine(good / good.sum(), own) if good.sum() > 0 else own[i])
            mixed_with_others += int((good > 0).sum() > 1)
        everything = [[torch.arange(len(c))] * 2 for c in CLIENTS]
        own = [sgd(begin[i], c, everything[i], lr=0.2) for i, c in enumerate(CLIENTS)]
        previous = begin
        for i in range(4):
            assert_same(ran.personal[t][i], own[i], 1e-10, what=f"{t} {i}")
        assert torch.allclose(ran.logs(t)["affinity"], affinity, atol=1e-10)
        own_weight, others = ran.logs(t)["own_weight"], ran.logs(t)["aggregation_weight"]
        shown = (1 - own_weight)[:, None] * others + own_weight.diag()
        assert torch.allclose(shown, weights, atol=1e-9)
    assert mixed_with_others >= 4


def test_normalised() -> None:
    raw = torch.tensor([[2.0, 1, -3, 1], [-1, -2, -3, 0], [-1, 0, 0, 5]])
    expected = [[0.5, 0.25, 0, 0.25], [1, 0, 0, 0], [0, 0, 0, 1]]
    assert FedFomo().normalised(raw).tolist() == expected


def test_is_fedavg_with_uniform_weights() -> None:
    ran = Watched({"weights": "uniform", **ALL}, TINY, NET, 3)
    fedavg = Watched({"name": "fedavg", "weighting": "uniform", **FULL}, TINY, NET, 3)
    for t in range(3):
        for i in range(4):
            assert_same(ran.up(t, "model", i), fedavg.up(t, "model", i), 1e-14)


@pytest.mark.parametrize("settings", [{"weights": "identity"}, {"models": 0}])
def test_is_local_alone(settings: dict) -> None:
    ran = Watched(ALL | settings, TINY, NET, 3)
    local = Watched({"name": "local", **FULL}, TINY, NET, 3)
    for i in range(4):
        assert_same(ran.personal[-1][i], local.personal[-1][i], 0)


def test_judging_samples_are_not_trained_on() -> None:
    sim = simulation(FedFomo(), TINY, NET, 1)
    judged, _ = holdout.split(sim.engine.local([0, 1, 2, 3], 0), 0.4, "fedfomo")
    other = [Client(c.x.clone(), c.y) for c in CLIENTS]
    for i, rows in enumerate(judged.index_host.split(judged.lengths)):  # type: ignore[attr-defined]
        other[i].x[rows - TINY.train[i][0]] += 5
    method = {"name": "fedfomo", "val_share": 0.4, "lr": 0.2, "batch_size": 4}
    a, b = (Watched(method, f, NET, 2) for f in (TINY, federate(other)))
    for i in range(4):
        assert_same(a.up(0, "model", i), b.up(0, "model", i), 0)
    assert any(differ(a.up(1, "model", i), b.up(1, "model", i)) for i in range(4))


def server_with(affinity: torch.Tensor) -> Server:
    sim = simulation(FedFomo(), TINY, NET, 1)
    sim.server["affinity"] = affinity
    return sim.server


def test_highest_affinity_is_sent() -> None:
    affinity = torch.tensor([[9.0, 1, 3, 2], [0, 9, -1, -2], [5, 4, 0, 6], [0, 0, 7, 9]])
    method = FedFomo(models=2, epsilon=0.0)
    chosen = method.chosen(server_with(affinity))
    assert [set(row) for row in chosen[:3].tolist()] == [{2, 3}, {0, 2}, {3, 0}]
    assert chosen[3, 0] == 2 and int(chosen[3, 1]) in (0, 1)


def test_exploration() -> None:
    """Of two models each is drawn at random with chance 0.3: client 3, which nobody likes, is among
    client 0's with probability 2 * 0.3 * 0.7 / 3 + 0.09 * 2 / 3 = 0.2. By round 3 nothing is."""
    method = FedFomo(models=2, epsilon=0.3, epsilon_decay=0.1)
    server = server_with(torch.tensor([[0.0, 9, 8, -9]] * 4))
    for round, low, high in ((0, 60, 140), (3, 0, 0)):
        server.round, hits = round, 0
        for lot in range(500):
            server["lot"] = torch.tensor(lot / 500)
            rows = method.chosen(server).tolist()
            assert all(len(set(row)) == 2 and i not in row for i, row in enumerate(rows))
            hits += 3 in rows[0]
        assert low <= hits <= high


def test_affinity_belongs_to_the_pair() -> None:
    """Clients 3 and 1 alone take part: only their rows change, only where they were sent models."""
    method = {"name": "fedfomo", "models": 2, "val_share": 0.0, **FULL}
    schedule = [[0, 1, 2, 3], [1, 3]]
    ran = Watched(method, TINY, NET, 2, schedule=schedule)
    sent = simulation(methods.build(method), TINY, NET, 2)
    sent.server["lot"], sent.server.round = ran.server[0]["lot"], 1
    sent.server["affinity"] = ran.server[0]["affinity"]
    chosen = sent.method.chosen(sent.server)
    change = ran.logs(1)["affinity"] - ran.logs(0)["affinity"]
    for k, i in ((0, 1), (1, 3)):
        weight = ran.fits[1].up["weight"][k]
        expected = torch.zeros(4, dtype=weight.dtype).scatter(0, chosen[i], weight)
        assert torch.allclose(change[i], expected) and (weight != 0).all()
        for m, j in enumerate(chosen[i].tolist()):
            model = {n: v[k, m] for n, v in ran.downs[1]["models"].items()}
            assert_same(model, ran.up(0, "model", j), 0)
    assert not change[[0, 2]].any()


def test_traffic() -> None:
    ran = Watched({"name": "fedfomo", "models": 2, **FULL}, TINY, NET, 1)
    size = 8 * sum(v.numel() for v in START.values())
    assert ran.rounds[0].bytes_down == 4 * 2 * size
    assert ran.rounds[0].bytes_up == 4 * (size + 8 * 3)  # and M weights and a lot


@pytest.mark.parametrize("engine", ENGINES)
def test_one_client(engine: str) -> None:
    alone = federate(CLIENTS[:1])
    ran = Watched({"name": "fedfomo", "val_share": 0.0, **FULL}, alone, NET, 2, engine=engine)
    local = Watched({"name": "local", **FULL}, alone, NET, 2, engine=engine)
    assert_same(ran.personal[-1][0], local.personal[-1][0], 0)


@pytest.mark.parametrize("bad", [{"models": -1}, {"val_share": 1.0}, {"epsilon": -0.1}])
def test_settings_are_checked(bad: dict) -> None:
    with pytest.raises(UserError):
        methods.build({"name": "fedfomo", **bad})
