"""The columns of PLGA's Table 2 as they are defined there, with numbers worked out by hand.

|S| = 5 of N = 10 clients are stragglers, the m-th with missing period m. T is training without an
upload, U a late upload, B training with an upload, L training in vain.
"""

from __future__ import annotations

import pytest
import torch

from idiolect import methods
from idiolect.core.method import Server, Ups
from idiolect.simulation.schedule import Participation, Stragglers, Turn, make
from idiolect.simulation.simulation import Simulation
from tests.conftest import simulation
from tests.methods.plain import CLIENTS, NET, TINY, assert_same, combine, model_with, sgd
from tests.watched import Watched

FULL = {"lr": 0.2, "batch_size": "full"}
ONE_STEP = {**FULL, "steps": 1}


def turns(asynchronous: bool, rounds: int, cycle: str = "auto", count: int = 5) -> list[Turn]:
    return make(
        list(range(10)),
        rounds,
        0,
        asynchronous=asynchronous,
        participation=Participation("full"),
        stragglers=Stragglers(count, cycle),  # type: ignore[arg-type]
    )


def marks(schedule: list[Turn], client: int) -> str:
    """What one client does, round by round."""
    out = ""
    for t, turn in enumerate(schedule):
        began = turn.arrive.get(client)
        if client in turn.start:
            out += "L" if client in turn.lost else "B" if began == t else "T"
        else:
            out += "." if began is None else "U"
    return out


def test_cycle_of_the_asynchronous_columns() -> None:
    """T, p - 1 idle rounds, U, B: the cycle has p + 2 rounds."""
    schedule = turns(True, 14)
    assert marks(schedule, 0) == "TUBTUBTUBTUBTU"
    assert marks(schedule, 1) == "T.UBT.UBT.UBTU"  # what is still out in the last round arrives
    assert marks(schedule, 2) == "T..UBT..UBT..U"
    assert marks(schedule, 4) == "T....UBT....UB"
    assert marks(schedule, 5) == marks(schedule, 9) == "B" * 14


def test_cycle_of_fedavg_sync() -> None:
    """p idle rounds, one in vain, one on time."""
    schedule = turns(False, 14)
    assert marks(schedule, 0) == ".LB.LB.LB.LB.L"
    assert marks(schedule, 2) == "...LB...LB...L"
    assert marks(schedule, 4) == ".....LB.....LB"
    assert marks(schedule, 7) == "B" * 14
    assert turns(True, 14, "discard") == schedule


def test_cycle_of_per_fedavg() -> None:
    """One round in, p rounds out: the cycle has p + 1 rounds."""
    schedule = turns(True, 12, "paper")
    assert marks(schedule, 0) == "TUTUTUTUTUTU"
    assert marks(schedule, 2) == "T..UT..UT..U"


def test_staleness_is_the_missing_period() -> None:
    for t, turn in enumerate(turns(True, 800)[:-1]):
        for client, began in turn.arrive.items():
            assert t - began in (0, client + 1 if client < 5 else 0)


def server_at(value: float) -> Server:
    sim = simulation(methods.build("fedasync"), TINY, NET, 1)
    sim.server["model"] = {"w": torch.tensor([value], dtype=torch.float64)}
    return sim.server


def arrivals(models: list[float], sizes: list[int], staleness: list[int], t: int = 20) -> Ups:
    record = {"model": {"w": torch.tensor(models, dtype=torch.float64)[:, None]}}
    weight = torch.tensor(sizes, dtype=torch.float64)
    return Ups(record, list(range(len(models))), weight, [t - p for p in staleness], t)


def test_fedavg_async_by_hand() -> None:
    """Raw w_k counts with its samples, however late: (30 * 1 + 10 * 5) / 40 = 2."""
    method = methods.build("fedavg_async")
    server = server_at(100.0)
    method.aggregate(server, arrivals([1.0, 5.0], [30, 10], [0, 7]))
    assert server["model"]["w"].item() == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("settings", "p", "a"),
    [
        ({}, 3, 0.4),  # 0.8 * 4^-0.5
        ({}, 8, 0.8 / 3),
        ({"staleness": "constant"}, 8, 0.8),
        ({"staleness": "hinge"}, 4, 0.8),
        ({"staleness": "hinge"}, 6, 0.8 / 21),  # 1 / (10 * (6 - 4) + 1)
        ({"mixing": 0.6, "exponent": 1.0}, 3, 0.15),
    ],
)
def test_fedasync_by_hand(settings: dict, p: int, a: float) -> None:
    """w_t = 10; w_k = 2 is late by p, w = 6 on time: (a * 2 + (1 - a) * 10 + 3 * 6) / 4."""
    method = methods.build({"name": "fedasync", **settings})
    server = server_at(10.0)
    method.aggregate(server, arrivals([2.0, 6.0], [10, 30], [p, 0]))
    expected = (a * 2 + (1 - a) * 10 + 3 * 6) / 4
    assert server["model"]["w"].item() == pytest.approx(expected, abs=1e-12)


def test_nobody_arrives() -> None:
    for name in ("fedavg_async", "fedasync"):
        empty = Ups({}, [], torch.zeros(0), [], 3, [0])
        server = server_at(7.0)
        methods.build(name).aggregate(server, empty)
        assert server["model"]["w"].item() == 7.0


def test_fedavg_sync_uses_on_time_work_only() -> None:
    """Clients 0 and 1 straggle (.LB and ..LB): rounds 1 to 4 average {2,3}, {2,3}, all but 1, and
    all but 0, which is idle again."""
    stragglers = Stragglers(periods=(1, 2))
    ran = Watched({"name": "fedavg", **FULL}, TINY, NET, 4, stragglers=stragglers)
    w = dict(ran.sim.start_tree)
    for t, who in enumerate([(2, 3), (2, 3), (0, 2, 3), (1, 2, 3)]):
        total = sum(len(CLIENTS[i]) for i in who)
        trained = [sgd(w, CLIENTS[i], lr=0.2) for i in who]
        w = combine([len(CLIENTS[i]) / total for i in who], trained)
        assert_same(ran.server[t]["model"], w, what=f"round {t}")


def test_fedavg_sync_with_continuing_batches() -> None:
    """fedavg_async with the cycle of FedAvg (Sync) is FedAvg (Sync): nothing late ever arrives."""
    stragglers = Stragglers(periods=(1, 2), cycle="discard")
    sync = Watched({"name": "fedavg", **FULL}, TINY, NET, 6, stragglers=stragglers)
    same = Watched({"name": "fedavg_async", **ONE_STEP}, TINY, NET, 6, stragglers=stragglers)
    for t in range(6):
        assert same.rounds[t].arrived == sync.rounds[t].arrived
        assert_same(same.server[t]["model"], sync.server[t]["model"], 0)
        assert all(s == 0 for s in same.rounds[t].staleness)


@pytest.mark.parametrize("name", ["fedavg_async", "fedasync", "lga"])
def test_without_stragglers_all_are_fedavg(name: str) -> None:
    ran = Watched({"name": name, **ONE_STEP}, TINY, NET, 4)
    fedavg = Watched({"name": "fedavg", **FULL}, TINY, NET, 4)
    for t in range(4):
        assert_same(ran.server[t]["model"], fedavg.server[t]["model"], 0)


def test_fedasync_that_takes_late_work_whole_is_fedavg_async() -> None:
    stragglers = Stragglers(periods=(1, 2))
    whole = {"name": "fedasync", "mixing": 1.0, "staleness": "constant", **ONE_STEP}
    ran = Watched(whole, TINY, NET, 6, stragglers=stragglers)
    same = Watched({"name": "fedavg_async", **ONE_STEP}, TINY, NET, 6, stragglers=stragglers)
    assert any(s for r in ran.rounds for s in r.staleness)
    for t in range(6):
        assert_same(ran.server[t]["model"], same.server[t]["model"], 0)


def test_settings_of_the_table() -> None:
    for name in ("fedavg_async", "fedasync", "per_fedavg_async", "lga", "plga"):
        method = methods.build(name)
        assert (method.lr, method.batch_size, method.steps) == (0.001, 64, 20)  # type: ignore[attr-defined]
        assert method.rounds_default == 800 and method.asynchronous


def test_client_column_is_the_trained_model() -> None:
    """For FedAvg-type methods the client's own trained model is tested, the global one apart."""
    stragglers = Stragglers(periods=(1, 0, 0, 0))
    method = methods.build({"name": "fedavg_async", **ONE_STEP})
    sim = Simulation(method, TINY, NET, rounds=1, stragglers=stragglers, dtype="float64")
    clients = sim.step().clients
    for i, c in enumerate(CLIENTS):
        trained = model_with(sgd(sim.start_tree, c, lr=0.2))
        hits = (trained(c.x).argmax(1) == c.y).double().mean().item()
        assert clients["accuracy_after"][i] == pytest.approx(hits)
