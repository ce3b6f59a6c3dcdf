"""PLGA: the personalized mix of Eq. 12 / 14, on time and late, against plain PyTorch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from idiolect import methods
from idiolect.core.net import Net
from idiolect.simulation.schedule import Stragglers
from tests.conftest import ENGINES
from tests.methods.plain import NET, START, TINY, NormNet, assert_same, differ, seeded
from tests.methods.straggling import Leap, St, Straggling
from tests.watched import Watched

FIXED = {"lr": 0.2, "batch_size": 4, "steps": 2, "order": "fixed"}
CODE = ("TUB", "T.UB", "B", "B")


@pytest.mark.parametrize(("equation", "expected"), [(11, 0.55625), (10, 0.40625)])
def test_scalars(equation: int, expected: float) -> None:
    """w0 = 0, wk = .5, w1 = .2, wt = .3."""

    def one(value: float) -> dict[str, torch.Tensor]:
        return {"0.weight": torch.tensor([[[value]]], dtype=torch.float64)}

    net = Net(nn.Sequential(nn.Linear(1, 1, bias=False)).double())
    method = methods.build({"name": "plga", "stages": 1, "equation": equation})
    mine = {"w0": one(0), "wk": one(0.5), "wp": one(9), "on_time": torch.ones(1) > 0}
    down = {"model": one(0.3), "first": one(0.2)}
    local = SimpleNamespace(net=net, log=lambda **values: None)
    _, kept = method.rejoin(down, mine, {}, local)  # type: ignore[arg-type]
    assert kept["wp"]["0.weight"].item() == pytest.approx(expected, abs=1e-12)


def test_without_stragglers_it_mixes_own_and_global_model() -> None:
    """wp = (1 - St) local + St global, computed at the next contact."""
    ran = Watched({"name": "plga", **FIXED}, TINY, NET, 2)
    new = ran.server[0]["model"]
    for i in range(4):
        own = ran.up(0, "model", i)
        S = Leap().similarity(START, own, new)
        expected = {n: (1 - St(S[n])) * own[n] + St(S[n]) * new[n] for n in START}
        assert_same(ran.personal[1][i], expected, 1e-12)
        assert_same(ran.personal[0][i], START, 0)


OPTIONS: dict[str, tuple[dict[str, Any], Leap]] = {
    "default": ({}, Leap()),
    "eq10": ({"equation": 10}, Leap(equation=10)),
    "per_tensor": ({"stages": "tensor"}, Leap(stages=tuple((n,) for n in START))),
    "whole": ({"stages": 1}, Leap(stages=(tuple(START),))),
    "raw_cosine": ({"weight": "cosine"}, Leap(raw=True)),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", OPTIONS)
def test_option(case: str, engine: str) -> None:
    options, leap = OPTIONS[case]
    ran = Watched(
        {"name": "plga", **FIXED, **options},
        TINY,
        NET,
        7,
        engine=engine,
        stragglers=Stragglers(periods=(1, 2)),
    )
    server, personal = Straggling(CODE, leap, leap=leap).run(7)
    for t in range(7):
        assert_same(ran.server[t]["model"], server[t], what=f"server {t}")
        for i in range(4):
            assert_same(ran.personal[t][i], personal[t][i], what=f"wp {t} {i}")


@pytest.mark.parametrize("case", ["eq10", "per_tensor", "whole"])
def test_options_really_change_the_result(case: str) -> None:
    def wp(leap: Leap) -> Any:
        return Straggling(CODE, leap, leap=leap).run(7)[1][-1][0]

    assert differ(wp(OPTIONS[case][1]), wp(Leap()), 1e-5)


def test_cycle_of_the_paper() -> None:
    stragglers = Stragglers(periods=(1, 2), cycle="paper")
    ran = Watched({"name": "plga", **FIXED}, TINY, NET, 6, stragglers=stragglers)
    server, personal = Straggling(("TU", "T.U", "B", "B"), Leap(), leap=Leap()).run(6)
    for t in range(6):
        assert_same(ran.server[t]["model"], server[t])
        for i in range(4):
            assert_same(ran.personal[t][i], personal[t][i], what=f"wp {t} {i}")


def test_personal_model_stays_while_the_client_is_away() -> None:
    ran = Watched({"name": "plga", **FIXED}, TINY, NET, 9, stragglers=Stragglers(periods=(3,)))
    # T . . U B T . . U: client 0 gets a new one when late work arrives, and after B
    same = [not differ(ran.personal[t][0], ran.personal[t - 1][0], 0) for t in range(1, 8)]
    assert same == [True, True, False, True, False, True, True]


def test_training_starts_from_the_global_model() -> None:
    ran = Watched({"name": "plga", **FIXED}, TINY, NET, 2)
    assert_same(ran.mine[2][0]["w0"], ran.server[0]["model"], 0)


def test_aggregates_the_leap_not_the_personalized_model() -> None:
    """The same server as LGA, round by round."""
    late = Stragglers(periods=(1, 2))
    both = [Watched({"name": n, **FIXED}, TINY, NET, 5, stragglers=late) for n in ("lga", "plga")]
    for t in range(5):
        assert_same(both[0].server[t]["model"], both[1].server[t]["model"], 0)


def test_batchnorm_statistics_are_the_clients_own() -> None:
    ran = Watched({"name": "plga", **FIXED}, TINY, seeded(NormNet), 2)
    for i in range(4):
        kept = ran.mine[2][i]["stats"]["body.1.running_var"]
        assert torch.equal(ran.personal[1][i]["body.1.running_var"], kept)
    assert not [n for n in ran.server[0]["model"] if "running" in n]


@pytest.mark.parametrize("engine", ENGINES)
def test_similarities_are_logged_by_client(engine: str) -> None:
    """S and St of body and head, of those who met the server; nothing of the others."""
    late = Stragglers(periods=(1, 2))
    ran = Watched({"name": "plga", **FIXED}, TINY, NET, 4, engine=engine, stragglers=late)
    assert "S" not in ran.logs(0)  # nobody has been there before
    S = ran.logs(1)["S"]
    there = [False, False, True, True]
    assert S.shape == (4, 2) and (~S.isnan()).all(1).tolist() == [True, *there[1:]]
    for i in (2, 3):  # on time: own work against the first aggregate
        expected = Leap().similarity(START, ran.up(0, "model", i), ran.server[0]["model"])
        both = [expected["body.0.weight"], expected["head.weight"]]
        assert S[i].tolist() == pytest.approx(both, abs=1e-12)
    assert torch.allclose(ran.logs(1)["St"][2:], torch.sigmoid(S[2:] - 1))
    lga = Watched({"name": "lga", **FIXED}, TINY, NET, 4, engine=engine, stragglers=late)
    assert "S" not in lga.logs(0)
    assert (~lga.logs(1)["S"].isnan()).all(1).tolist() == [True, False, False, False]
    assert torch.equal(lga.logs(1)["S"][0], S[0])
