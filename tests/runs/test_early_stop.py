"""A run ends when validation gets no better, also a resumed one; `on_round` sees every round."""

import json
from pathlib import Path

import pytest

from idiolect import simulate
from idiolect.data import Federation
from idiolect.errors import UserError
from idiolect.report.load import load
from idiolect.runs import config as settings
from idiolect.simulation import early_stop
from tests.cli.calls import call
from tests.conftest import SmallNet, ragged_federation

SLOW = ["--clients", "4", "--model", "linear", "--set", "split.alpha=0.5", "--rounds", "30"]
STOP = [*SLOW, "--stop-after", "2", "--set", "split.val_share=0.3", "--set", "method.lr=1.5"]


def test_when_it_is_over() -> None:
    scores = {0: 0.9, 1: 0.5, 2: 0.7, 3: 0.7, 4: None, 5: float("nan")}
    assert early_stop.best_round(scores) == 2
    assert early_stop.is_over(scores, 3) and not early_stop.is_over(scores, 4)
    assert not early_stop.is_over(scores, 0) and not early_stop.is_over({0: 0.1}, 1)


def test_rounds_between_two_tests_end_nothing() -> None:
    """Tests every fifth round: after round 8 nobody knows yet whether it got better."""
    scores = dict.fromkeys(range(9)) | {5: 0.5}
    assert not early_stop.is_over(scores, 3, 5)
    assert not early_stop.is_over(scores | {9: None, 10: 0.6}, 3, 5)
    assert early_stop.is_over(scores | {9: None, 10: 0.4}, 3, 5)
    how = {"rounds": 30, "stop_after": 3, "eval_every": 5}
    result = simulate({"name": "fedavg", "lr": 1.5}, with_validation(), SmallNet(), **how)
    told = result.summary["stopped_early"]
    assert (told["round"], told["best_round"] % 5) == (told["best_round"] + 5, 0)
    assert result.summary["accuracy"]["last"]["round"] == told["round"] == len(result.rounds) - 1


def test_a_run_ends_early_says_so_and_resumes_to_the_same_end(tmp_path: Path) -> None:
    out = tmp_path / "r"
    done = call("run", "fedavg", *STOP, "--checkpoint-every", "1", "--out", out, "--json")
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    ended, best = (summary["stopped_early"][key] for key in ("round", "best_round"))
    assert ended == best + 2 < 30 and summary["rounds"] == ended
    assert f"ended after round {ended}, no better on validation samples" in done.stderr
    assert load(out).finished
    before = (out / "clients.parquet").read_bytes()
    for newest in sorted((out / "checkpoint").glob(f"*{ended}*")):
        newest.unlink()
    (out / "summary.json").unlink()
    again = call("resume", out, "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["stopped_early"] == summary["stopped_early"]
    assert (out / "clients.parquet").read_bytes() == before
    (out / "summary.json").unlink()  # killed right before its last file
    assert json.loads(call("resume", out, "--json").stdout)["rounds"] == ended


def test_runs_that_may_end_early_are_compared_one_by_one(tmp_path: Path) -> None:
    words = ["compare", "fedavg", *STOP, "--seeds", "0,1", "--out", tmp_path / "c", "--json"]
    done = call(*words)
    assert done.exit_code == 0, done.output
    both = [load(tmp_path / "c" / f"fedavg-seed{seed}") for seed in (0, 1)]
    assert all(run.summary["rounds"] < 30 for run in both)


def test_without_validation_samples_it_is_refused() -> None:
    done = call("run", "fedavg", *SLOW, "--stop-after", "2")
    assert done.exit_code == 2 and "add --set split.val_share=0.2" in done.stderr


def test_older_runs_stay_the_same() -> None:
    made = settings.resolve(flags={"method": "fedavg"})
    old = {key: value for key, value in made.items() if key != "stop_after"}
    assert settings.digest(old) == settings.digest(made)
    assert settings.digest({**made, "stop_after": 3}) != settings.digest(made)


def with_validation() -> Federation:
    from dataclasses import replace

    made = ragged_federation()
    return replace(made, val=tuple(rows[:5] for rows in made.train))


@pytest.mark.parametrize("out", [False, True])
def test_from_python(tmp_path: Path, out: bool) -> None:
    seen: list[int] = []
    where = {"out": tmp_path / "r"} if out else {}

    def watch(done) -> bool | None:
        seen.append(done.round)
        assert done.clients["accuracy_before"].shape == (5,)
        return False if done.round == 2 else None

    result = simulate("fedavg", ragged_federation(), SmallNet(), rounds=9, on_round=watch, **where)
    assert seen == [0, 1, 2] and len(result.rounds) == 3 and set(result.models) == {2}
    assert result.summary["stopped_early"] == {"round": 2, "best_round": None}
    if out:
        assert load(tmp_path / "r").summary["rounds"] == 2


def test_early_from_python() -> None:
    how = {"rounds": 20, "stop_after": 1}
    result = simulate("fedavg", with_validation(), SmallNet(), **how)
    told = result.summary["stopped_early"]
    assert told["round"] == told["best_round"] + 1 == len(result.rounds) - 1
    with pytest.raises(UserError, match="validation samples"):
        simulate("fedavg", ragged_federation(), SmallNet(), **how)
