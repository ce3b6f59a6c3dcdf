"""LGA: the oracles of the facts sheet, both equations, and every option against plain PyTorch."""

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
from tests.methods.straggling import STAGES, Leap, Straggling
from tests.watched import Watched

FIXED = {"lr": 0.2, "batch_size": 4, "steps": 2, "order": "fixed"}
CODE = ("TUB", "T.UB", "B", "B")  # client 0 is away for one round, client 1 for two
PAPER = ("TU", "T.U", "B", "B")
PERIODS = (1, 2)


def leap(
    w0: list[float], wk: list[float], w1: list[float], wt: list[float], **options: Any
) -> torch.Tensor:
    """What a straggler with these four models sends, as one vector."""
    net = Net(nn.Sequential(nn.Linear(len(w0), 1, bias=False)).double())
    tree = {
        k: {"0.weight": torch.tensor([[v]], dtype=torch.float64)}
        for k, v in {"w0": w0, "wk": wk, "first": w1, "model": wt}.items()
    }
    method = methods.build({"name": "lga", "stages": 1, **options})
    down = {"model": tree["model"], "first": tree["first"]}
    mine = {"w0": tree["w0"], "wk": tree["wk"]}
    local = SimpleNamespace(net=net, log=lambda **values: SHOWN.update(values))
    up, _ = method.rejoin(down, mine, {"model": tree["wk"]}, local)  # type: ignore[arg-type]
    return up["model"]["0.weight"].flatten()


SHOWN: dict[str, torch.Tensor] = {}  # what the last rejoin logged


# --- numeric oracles ---


def test_away_for_one_round_leaps_nowhere() -> None:
    """w1 = wt: (11) is exactly wt + (wk - w0), (10) is exactly wk."""
    w0, wk, wt = [0.25, -0.5], [0.75, 0.125], [1.5, 2.0]
    assert leap(w0, wk, wt, wt).tolist() == [2.0, 2.625]
    assert leap(w0, wk, wt, wt, equation=10).tolist() == wk


@pytest.mark.parametrize(("equation", "expected"), [(10, 0.5125), (11, 0.8125)])
def test_scalars(equation: int, expected: float) -> None:
    got = leap([0.0], [0.5], [0.2], [0.3], equation=equation)
    assert got.item() == pytest.approx(expected, abs=1e-12)


def test_vectors() -> None:
    got = leap([0, 0, 0.0], [0.3, -0.2, 0.1], [0.1, 0.1, 0], [0.2, 0.1, 0.05])
    assert got.tolist() == pytest.approx([0.502769, -0.1, 0.150154], abs=1e-6)
    assert SHOWN["S"].tolist() == [[pytest.approx(0.188982, abs=1e-6)]]  # client, stage
    assert SHOWN["St"].tolist() == [[pytest.approx(0.307674, abs=1e-6)]]


def test_raw_cosine_of_the_code() -> None:
    """S = 0.188982 instead of St = 0.307674 in front of the leap."""
    got = leap([0, 0, 0.0], [0.3, -0.2, 0.1], [0.1, 0.1, 0], [0.2, 0.1, 0.05], weight="cosine")
    S = 0.1 * (0.3 - 0.2) / ((0.14 * 0.02) ** 0.5)
    assert pytest.approx(0.188982, abs=1e-6) == S
    bend = [S * 0.3**2 * 0.1, 0.0, S * 0.1**2 * 0.05]
    assert got.tolist() == pytest.approx([0.5 + bend[0], -0.1, 0.15 + bend[2]], abs=1e-12)


@pytest.mark.parametrize(
    ("w1", "St"), [([0.0, 1.0], 0.268941), ([1.0, 0.0], 0.5), ([-1.0, 0.0], 0.119203)]
)
def test_softmaxed_similarity(w1: list[float], St: float) -> None:
    """Orthogonal, aligned, opposed movement: St is read off the leap term, St * 1 * 1 * 1."""
    wt = [w1[0] + 1, w1[1]]
    got = leap([0.0, 0.0], [1.0, 0.0], w1, wt)
    assert got[0].item() - wt[0] - 1 == pytest.approx(St, abs=1e-6)


def test_a_straggler_that_did_not_move() -> None:
    got = leap([0.5, 0.5], [0.5, 0.5], [1.0, 2.0], [3.0, 4.0])
    assert got.tolist() == [3.0, 4.0]


# --- no stragglers: FedAvg ---


@pytest.mark.parametrize("engine", ENGINES)
def test_without_stragglers_it_is_fedavg_bit_for_bit(engine: str) -> None:
    settings = {"lr": 0.2, "batch_size": 4, "epochs": 2, "steps": 0}
    lga = Watched({"name": "lga", **settings}, TINY, NET, 3, engine=engine)
    average = Watched({"name": "fedavg", **settings}, TINY, NET, 3, engine=engine)
    for t in range(3):
        for n in START:
            assert torch.equal(lga.server[t]["model"][n], average.server[t]["model"][n])


# --- every option against a plain reference ---

OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {"late": Leap()}),
    "eq10": ({"equation": 10}, {"late": Leap(equation=10)}),
    "cosine_per_tensor": (
        {"weight": "cosine", "stages": "tensor"},
        {"late": Leap(raw=True, stages=tuple((n,) for n in START))},
    ),
    "whole": ({"stages": 1}, {"late": Leap(stages=(tuple(START),))}),
    "uniform_mean": ({"weighting": "uniform"}, {"late": Leap(), "uniform": True}),
    "class_ordered": ({"order": "class"}, {"late": Leap(), "by_class": True}),
    "five_batches": ({"steps": 5}, {"late": Leap(), "steps": 5}),
    "full_batch": ({"batch_size": "full", "steps": 1}, {"late": Leap(), "batch": None, "steps": 1}),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", OPTIONS)
def test_option(case: str, engine: str) -> None:
    """Six rounds, so that client 1's work is still out at the end and arrives then."""
    options, reference = OPTIONS[case]
    ran = Watched(
        {"name": "lga", **FIXED, **options},
        TINY,
        NET,
        6,
        engine=engine,
        stragglers=Stragglers(periods=PERIODS),
    )
    server, _ = Straggling(CODE, **reference).run(6)
    assert ran.rounds[-1].staleness[1] == 1
    for t in range(6):
        assert_same(ran.server[t]["model"], server[t], what=f"round {t}")
        assert_same(ran.personal[t][0], server[t])


@pytest.mark.parametrize("case", OPTIONS)
def test_options_really_change_the_result(case: str) -> None:
    """Except the leap term, a product of three small movements: only the tenth digit."""
    tiny_change = case in ("cosine_per_tensor", "whole")
    _, reference = OPTIONS[case]
    ours = Straggling(CODE, **reference).run(6)[0][-1]
    default = Straggling(CODE, late=Leap()).run(6)[0][-1]
    assert differ(ours, default, 1e-10 if tiny_change else 1e-4) == (case != "default")


def test_cycle_of_the_paper() -> None:
    """One round in, p rounds out: no on-time round between absences."""
    stragglers = Stragglers(periods=PERIODS, cycle="paper")
    ran = Watched({"name": "lga", **FIXED}, TINY, NET, 6, stragglers=stragglers)
    server, _ = Straggling(PAPER, Leap()).run(6)
    for t in range(6):
        assert_same(ran.server[t]["model"], server[t], what=f"round {t}")


def test_last_round_delivers_what_is_still_out() -> None:
    """Client 1 starts in round 5 and would arrive in round 7; the run ends with round 6."""
    stragglers = Stragglers(periods=(0, 2))
    ran = Watched({"name": "lga", **FIXED}, TINY, NET, 6, stragglers=stragglers)
    last = ran.rounds[-1]
    assert dict(zip(last.arrived, last.staleness, strict=True)) == {0: 0, 1: 1, 2: 0, 3: 0}
    server, _ = Straggling(("B", "T.UB", "B", "B"), Leap()).run(6)
    assert_same(ran.server[-1]["model"], server[-1])


def test_epochs_instead_of_mini_batches() -> None:
    passes, mini = (
        Watched({"name": "lga", **FIXED, **amount}, TINY, NET, 1)
        for amount in ({"steps": 0, "epochs": 1}, {"steps": 2, "epochs": 7})
    )
    # Clients 0, 2 and 3 have two batches; client 1 has three and is left out of the last one.
    assert_same(passes.up(0, "model", 0), mini.up(0, "model", 0), 1e-15)
    assert differ(passes.up(0, "model", 1), mini.up(0, "model", 1))


def test_rounds_in_which_nobody_arrives() -> None:
    """All four away: the global model waits for them."""
    stragglers = Stragglers(periods=(2, 2, 3, 3))
    ran = Watched({"name": "lga", **FIXED}, TINY, NET, 4, stragglers=stragglers)
    assert [r.arrived for r in ran.rounds] == [[], [], [0, 1], [0, 1, 2, 3]]
    assert_same(ran.server[1]["model"], START, 0)
    server, _ = Straggling(("T.UB", "T.UB", "T..UB", "T..UB"), Leap()).run(4)
    assert_same(ran.server[-1]["model"], server[-1])


def test_traffic_of_late_work() -> None:
    """A late client also downloads the present model and w1: 4 model sizes instead of 2."""
    ran = Watched(
        {"name": "lga", **FIXED}, TINY, NET, 3, stragglers=Stragglers(periods=(2, 0, 0, 0))
    )
    size = 8 * sum(v.numel() for v in START.values())
    assert [r.bytes_down // size for r in ran.rounds] == [4, 3, 3 + 2]
    assert [r.bytes_up // size for r in ran.rounds] == [3, 3, 4]


def test_past_models_are_forgotten_when_nobody_needs_them() -> None:
    ran = Watched({"name": "lga", **FIXED}, TINY, NET, 4, stragglers=Stragglers(periods=(2,)))
    assert [sorted(s["past"]) for s in ran.server] == [["0"], ["0"], [], []]
    assert_same(ran.server[1]["past"]["0"], ran.server[0]["model"], 0)


def test_stage_names() -> None:
    assert Net(NET).stages(2) == [*STAGES]


def test_batchnorm_statistics_stay_with_the_client() -> None:
    stragglers = Stragglers(periods=(1,))
    ran = Watched({"name": "lga", **FIXED}, TINY, seeded(NormNet), 3, stragglers=stragglers)
    assert not [n for n in ran.fits[0].up["model"] if "running" in n]
    means = [p["body.1.running_mean"] for p in ran.personal[-1]]
    assert differ({"m": means[0]}, {"m": means[2]})
