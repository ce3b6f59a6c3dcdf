"""SCAFFOLD: parity with PFLlib, both options by hand, FedAvg where there is no drift."""

from __future__ import annotations

import pytest
import torch

from idiolect import methods
from tests.conftest import ENGINES, Golden, SmallNet, assert_close, run
from tests.methods.plain import (
    CLIENTS,
    NET,
    START,
    TINY,
    TWINS,
    assert_same,
    batches,
    combine,
    differ,
    federate,
    gradient,
    minus,
)
from tests.watched import Watched


@pytest.mark.parametrize("engine", ENGINES)
def test_golden(engine: str, golden_federation, golden_start) -> None:
    g = Golden("pfllib_scaffold")
    method = {"name": "scaffold", "lr": 0.1, "epochs": 2, "batch_size": "full"}
    ran = Watched(method, golden_federation, SmallNet(), 3, engine=engine, init=golden_start)
    for r in (1, 2, 3):
        assert_close(ran.server[r - 1]["model"], g.tree(f"round{r}/server"), what=f"server {r}")
        assert_close(ran.server[r - 1]["control"], g.tree(f"round{r}/server_c"), what=f"c {r}")
        for i in range(4):
            assert_close(ran.up(r - 1, "model", i), g.tree(f"round{r}/client{i}/local"))
            assert_close(ran.mine[r][i]["control"], g.tree(f"round{r}/client{i}/c"))
        accuracy = torch.from_numpy(ran.rounds[r - 1].clients["accuracy_after"])
        assert torch.allclose(accuracy, g[f"round{r}/test_acc_local"].double())
    for i in range(4):
        assert_close(ran.personal[-1][i], g.tree(f"final/client{i}"), what=f"final {i}")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("option", [1, 2])
def test_partial_rounds_by_hand(engine: str, option: int) -> None:
    """Clients of 6, 9, 5, 8 samples take 4, 6, 4, 4 steps; option 2 counts each one's own."""
    lr, eta, schedule = 0.2, 0.5, [[0, 1], [1, 3], [0, 1, 2, 3]]
    method = {
        "name": "scaffold",
        "option": option,
        "lr": lr,
        "server_lr": eta,
        "epochs": 2,
        "batch_size": 4,
        "order": "fixed",
    }
    ran = Watched(method, TINY, NET, 3, engine=engine, schedule=schedule)
    zero = {n: 0 * v for n, v in START.items()}
    x, c, own = START, zero, [zero] * 4
    for t, who in enumerate(schedule):
        moved, changed = [], []
        for i in who:
            y, rows = x, batches(len(CLIENTS[i]), 4, epochs=2)
            for at in rows:
                g = gradient(y, CLIENTS[i], at)
                y = {n: y[n] - lr * (g[n] - own[i][n] + c[n]) for n in y}
            if option == 1:
                fresh = gradient(x, CLIENTS[i])
            else:
                step = lr * len(rows)
                fresh = {n: own[i][n] - c[n] + (x[n] - y[n]) / step for n in x}
            moved.append(minus(y, x))
            changed.append(minus(fresh, own[i]))
            own[i] = fresh
        x = combine([1.0] + [eta / len(who)] * len(who), [x, *moved])
        c = combine([1.0] + [1 / 4] * len(who), [c, *changed])
        assert_same(ran.server[t]["model"], x, what=f"x {t}")
        assert_same(ran.server[t]["control"], c, what=f"c {t}")
        for i in range(4):
            assert_same(ran.mine[t + 1][i]["control"], own[i], what=f"c_{i} {t}")


def test_first_round_is_fedavg_to_the_bit() -> None:
    settings = {"lr": 0.2, "batch_size": 3, "weighting": "uniform"}
    ours = Watched({"name": "scaffold", **settings}, TINY, NET, 2)
    theirs = Watched({"name": "fedavg", **settings}, TINY, NET, 2)
    assert_same(ours.server[0]["model"], theirs.server[0]["model"], tol=0)
    assert differ(ours.server[1]["model"], theirs.server[1]["model"])


@pytest.mark.parametrize("option", [1, 2])
def test_without_drift_it_is_fedavg(option: int) -> None:
    """Clients with the same data: c_i = c, nothing to correct."""
    settings = {"lr": 0.2, "batch_size": "full", "epochs": 3}
    twins = federate(TWINS)
    ours = run(methods.build({"name": "scaffold", "option": option, **settings}), twins, NET)
    theirs = run(methods.build({"name": "fedavg", **settings}), twins, NET)
    assert_same(ours.server["model"], theirs.server["model"], tol=1e-12)


def test_server_control_is_the_mean_of_the_clients() -> None:
    """With all of them in every round (and also if they take turns, from a zero start)."""
    for schedule in (None, [[0, 2], [1, 3], [0, 3]]):
        ran = Watched({"name": "scaffold", "lr": 0.1}, TINY, NET, 3, schedule=schedule)
        mean = combine([0.25] * 4, [ran.mine[3][i]["control"] for i in range(4)])
        assert_same(ran.server[2]["control"], mean)


def test_four_models_travel() -> None:
    ran = Watched({"name": "scaffold"}, TINY, NET, 1)
    model = sum(v.numel() * v.element_size() for v in START.values())
    assert ran.rounds[0].bytes_down == 4 * 2 * model
    assert ran.rounds[0].bytes_up == 4 * 2 * model
