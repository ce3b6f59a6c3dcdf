"""Parity with the authors' own programs: every number of every golden file, by both engines."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from idiolect import methods
from idiolect.core import tree
from idiolect.data import Federation
from idiolect.simulation.requests import Fit
from idiolect.simulation.schedule import Stragglers
from idiolect.simulation.simulation import Simulation
from tests.conftest import ENGINES, Golden, SmallNet, assert_close, rows
from tests.watched import watch_tasks

pytestmark = pytest.mark.parametrize("engine", ENGINES)

FULL = {"batch_size": "full", "lr": 0.1}


class Recorded:
    """A simulation whose messages are kept, round by round (from 1)."""

    def __init__(
        self, method: dict[str, Any], federation: Federation, start: dict, rounds: int, **more: Any
    ) -> None:
        self.sim = Simulation(
            methods.build(method),
            federation,
            SmallNet(),
            rounds=rounds,
            init=start,
            device="cpu",
            dtype="float64",
            **more,
        )
        self.rounds, self.fits, self.rejoined = [], [], []
        rejoin = self.sim._rejoin

        def keep_fit(task: Any, fitted: Any) -> None:
            if type(task) is Fit:
                self.fits[-1] = fitted

        def keep_rejoin(*args: Any) -> Any:
            self.rejoined[-1] = yield from rejoin(*args)
            return self.rejoined[-1]

        watch_tasks(self.sim, keep_fit)
        self.sim._rejoin = keep_rejoin  # type: ignore[method-assign]
        self.server, self.personal, self.mine = [], [], []
        for _ in range(rounds):
            self.fits.append(None)
            self.rejoined.append({})
            self.rounds.append(self.sim.step())
            self.server.append(dict(self.sim.server))
            self.personal.append([self.sim.personal_model(i) for i in range(4)])
            self.mine.append({i: dict(row) for i, row in rows(self.sim.mine).items()})

    def up(self, r: int, name: str, client: int) -> dict[str, Tensor]:
        return tree.client(self.fits[r - 1].up[name], client)

    def accuracy(self, r: int, series: str = "before") -> Tensor:
        return torch.from_numpy(self.rounds[r - 1].clients[f"accuracy_{series}"])


@pytest.mark.parametrize("name", ["fedavg", "fedper"])
def test_pfllib(name: str, engine: str, golden_federation, golden_start) -> None:
    g = Golden(f"pfllib_{name}")
    ran = Recorded(
        {"name": name, "epochs": 2, **FULL}, golden_federation, golden_start, 3, engine=engine
    )
    part = "model" if name == "fedavg" else "base"
    for r in (1, 2, 3):
        assert_close(ran.server[r - 1][part], g.tree(f"round{r}/server"), what=f"server {r}")
        for i in range(4):
            ours = tree.client(ran.fits[r - 1].trained, i)
            assert_close(ours, g.tree(f"round{r}/client{i}/local"), what=f"client {i}")
        assert torch.allclose(ran.accuracy(r, "after"), g[f"round{r}/test_acc_local"].double())
    for i in range(4):
        assert_close(ran.personal[-1][i], g.tree(f"final/client{i}"), what=f"final {i}")


def test_feddwa(engine: str, golden_federation, golden_start) -> None:
    g = Golden("feddwa_full_E1_K2")
    method = {"name": "feddwa", "top_k": 2, **FULL}
    ran = Recorded(method, golden_federation, golden_start, 3, engine=engine)
    for r in (1, 2, 3):
        logs = ran.rounds[r - 1].logs
        assert torch.allclose(1 / logs["distance"], g[f"round{r}/inv_dist"].double(), rtol=1e-4)
        assert torch.allclose(logs["aggregation_weight"], g[f"round{r}/p"].double(), atol=1e-5)
        for i in range(4):
            assert_close(ran.up(r, "model", i), g.tree(f"round{r}/client{i}/trained"))
            assert_close(ran.up(r, "guidance", i), g.tree(f"round{r}/client{i}/guidance"))
            assert_close(ran.personal[r - 1][i], g.tree(f"round{r}/client{i}"))
        assert torch.allclose(ran.accuracy(r), g[f"round{r}/test_acc"].double())


def test_fedas(engine: str, golden_federation, golden_start) -> None:
    g = Golden("fedas_full_E1")
    assert int(g["hyper/leak_as_published"]) == 0
    method = {"name": "fedas", "epochs": 1, "align_lr": 0.01, **FULL}
    ran = Recorded(method, golden_federation, golden_start, 3, engine=engine)
    for r in (1, 2, 3):
        trace = ran.fits[r - 1].up["trace"]
        assert torch.allclose(trace, g[f"round{r}/trace"].double(), rtol=1e-5)
        weight = ran.rounds[r - 1].logs["aggregation_weight"]
        assert torch.allclose(weight, g[f"round{r}/agg_weight"].double(), atol=1e-5)
        server = {n: v for n, v in g.tree(f"round{r}/server").items() if n.startswith("body")}
        assert_close(ran.server[r - 1]["base"], server, what=f"server {r}")
        for i in range(4):
            assert_close(ran.personal[r - 1][i], g.tree(f"round{r}/client{i}"))
        assert torch.allclose(ran.accuracy(r), g[f"round{r}/test_acc"].double())


def test_spfl(engine: str, golden_federation, golden_start) -> None:
    g = Golden("spfl_softmaxhead_2step_concatS")
    decay = float(g["hyper/weight_decay"])
    method = {"name": "spfl", "gamma": 2, "weight_decay": decay, **FULL}
    ran = Recorded(method, golden_federation, golden_start, 3, engine=engine)
    for r in (1, 2, 3):
        logs = ran.rounds[r - 1].logs
        refresh = int(g[f"round{r}/refresh_in_use"])
        for s, stage in enumerate(("body", "head")):
            if r in (1, 3):
                assert torch.allclose(
                    logs[f"similarity_{s}"], g[f"refresh{refresh}/S_{stage}"].double(), atol=1e-5
                )
            soft = g[f"refresh{refresh}/St_{stage}"].double()
            assert torch.allclose(logs[f"mixing_{s}"], soft, atol=1e-5)
        for i in range(4):
            trained = tree.client(ran.fits[r - 1].trained, i)
            assert_close(trained, g.tree(f"round{r}/client{i}/trained"))
            assert_close(ran.personal[r - 1][i], g.tree(f"round{r}/client{i}"))
        assert torch.allclose(ran.accuracy(r), g[f"round{r}/test_acc"].double())
        mixed = g[f"round{r}/test_acc_before_mixing"].double()
        assert torch.allclose(ran.accuracy(r, "after"), mixed)


def test_plga(engine: str, golden_federation, golden_start) -> None:
    g = Golden("plga_eq11_St_2stage")
    method = {"name": "plga", "lr": 0.2, "batch_size": "full", "steps": 1}
    stragglers = Stragglers(periods=tuple(int(p) for p in g["hyper/periods"]))
    ran = Recorded(method, golden_federation, golden_start, 8, engine=engine, stragglers=stragglers)
    start = golden_start
    for r in range(1, 9):
        assert_close(start, g.tree(f"round{r}/global_start"), what=f"start {r}")
        start = ran.server[r - 1]["model"]
        assert_close(start, g.tree(f"round{r}/server"), what=f"server {r}")
        for i in range(4):
            assert_close(
                ran.personal[r - 1][i], g.tree(f"round{r}/client{i}/wp"), what=f"wp {r} {i}"
            )
            if f"round{r}/client{i}/stale/what/head.bias" in g.arrays:
                what = ran.rejoined[r - 1][i]["model"]
                assert_close(what, g.tree(f"round{r}/client{i}/stale/what"), what=f"what {r} {i}")
                wk = ran.mine[r - 1][i]["wk"]
                assert_close(wk, g.tree(f"round{r}/client{i}/stale/wk"), what=f"wk {r} {i}")
        assert ran.rounds[r - 1].arrived == g[f"round{r}/arrived"].tolist()
        assert torch.allclose(ran.accuracy(r), g[f"round{r}/test_acc_wp"].double())
        local = g[f"round{r}/test_acc_local"].double()
        assert torch.allclose(ran.accuracy(r, "after"), local)
        union = ran.rounds[r - 1].clients["accuracy_global"].mean()  # equal test sizes
        assert union == pytest.approx(float(g[f"round{r}/test_acc_server_union"]), abs=1e-6)


def test_pflego(engine: str, golden_federation, golden_start) -> None:
    g = Golden("pflego_sgd_full")
    own = [[0, 1, 2], [1, 2, 3], [2, 3, 4], [0, 3, 4]]
    heads = {}
    for i, classes in enumerate(own):
        weight, bias = torch.zeros(5, 24), torch.zeros(5)
        weight[classes], bias[classes] = (
            g[f"init/client{i}/W"][:, :-1],
            g[f"init/client{i}/W"][:, -1],
        )
        heads[i] = {"head.weight": weight, "head.bias": bias}
    method = {
        "name": "pflego",
        "tau": 5,
        "beta": 0.1,
        "rho": 0.1,
        "server": "sgd",
        "head_init": "start",
    }
    ran = Recorded(method, golden_federation, golden_start, 3, engine=engine, clients_init=heads)
    for r in (1, 2, 3):
        assert_close(ran.server[r - 1]["theta"], g.tree(f"round{r}/server"), what=f"server {r}")
        for i, classes in enumerate(own):
            assert_close(ran.up(r, "gradient", i), g.tree(f"round{r}/client{i}/grad_theta"))
            head = ran.mine[r - 1][i]["head"]
            W = torch.cat([head["head.weight"], head["head.bias"][:, None]], 1)[classes]
            assert torch.allclose(W, g[f"round{r}/client{i}/W"].double(), atol=1e-5)
        before = g[f"round{r}/test_acc_before_server_step"].double()
        assert torch.allclose(ran.accuracy(r, "after"), before)
        assert torch.allclose(ran.accuracy(r), g[f"round{r}/test_acc"].double())
