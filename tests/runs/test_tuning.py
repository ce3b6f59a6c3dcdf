"""Values are chosen on validation data, by the same number of trials for every method."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idiolect.errors import UserError
from idiolect.report import load
from idiolect.runs import tuning
from idiolect.runs.compare import Plan, plans
from idiolect.runs.directory import read_config
from idiolect.runs.execute import execute
from idiolect.runs.history import ClientLog
from idiolect.runs.progress import Progress
from tests.runs.killed import Killed

SETS = ["rounds=2", "model.name=linear", "split.clients=4", "split.val_share=0.3"]


def planned(
    out: Path, methods: list[str], *tunes: str, seeds: tuple[int, ...] = (0,)
) -> list[Plan]:
    return plans(methods, seeds, out / tuning.TRIALS, sets=SETS, sweeps=list(tunes))


def test_the_best_on_validation_is_chosen_and_only_it_is_reported(tmp_path: Path) -> None:
    plan = planned(tmp_path, ["local", "fedavg"], "lr=0.0001,0.3,0.001", seeds=(0, 1))
    tuned = tuning.tune(plan, Progress())
    kept = tuning.keep_chosen(tuned, tmp_path, Progress())
    names = ["local-seed0", "local-seed1", "fedavg-seed0", "fedavg-seed1"]
    assert [item.out.name for item in kept] == names
    assert all(item.config["method"]["lr"] == 0.3 for item in kept)
    for trials in tuned.values():
        scores = [trial.validation or 0 for trial in trials]
        assert len(trials) == 3 and scores == sorted(scores, reverse=True)
        means = [_validation(item.out) for item in trials[0].plans]
        assert trials[0].validation == pytest.approx(np.mean(means))
    written = json.loads((tmp_path / "tuning.json").read_text())
    assert "validation" in written["selected_on"]
    assert written["chosen_first"]["local"][0]["values"] == {"lr": 0.3}
    # Again: nothing is run or copied a second time.
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    again = tuning.keep_chosen(tuning.tune(plan, Progress()), tmp_path, Progress())
    assert [item.out for item in again] == [item.out for item in kept]
    after = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    assert {p for p in before if before[p] != after[p]} == {tmp_path / "tuning.json"}


def test_more_trials_may_choose_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was chosen before is put aside, with a word; another run is told before the trials."""

    def chosen(*values: str) -> Plan:
        plan = planned(tmp_path, ["local"], f"lr={','.join(values)}")
        tuning.check_places(plan, tmp_path)
        [kept] = tuning.keep_chosen(tuning.tune(plan, Progress()), tmp_path, Progress())
        return kept

    assert chosen("0.0001", "0.001").config["method"]["lr"] == 0.001
    again = chosen("0.0001", "0.001", "0.3")
    assert again.config["method"]["lr"] == 0.3 and again.out == tmp_path / "local-seed0"
    assert read_config(again.out)["method"]["lr"] == 0.3
    assert load(again.out).finished and (again.out / "earlier-1" / "summary.json").exists()
    assert "earlier-1" in capsys.readouterr().err
    with pytest.raises(UserError, match="another run"):
        chosen("0.0002", "0.0003")
    assert not (tmp_path / "trials" / "local-lr0.0002-seed0").exists()


def test_a_chosen_run_is_that_of_the_trial(tmp_path: Path) -> None:
    """Where a comparison without tuning was stopped with the same settings, and where the trial was
    made again since."""
    plan = planned(tmp_path, ["local"], "lr=0.0001,0.3")
    [killed] = [item.config for item in plan if item.config["method"]["lr"] == 0.3]
    place = tmp_path / "local-seed0"
    with pytest.raises(Killed):
        execute(killed, place, progress=Dying())
    tuned = tuning.tune(plan, Progress())
    for _ in range(2):
        [kept] = tuning.keep_chosen(tuned, tmp_path, Progress())
        assert load(kept.out).finished and len(load(kept.out).events) == 3
    trial = tmp_path / "trials" / "local-lr0.3-seed0"
    summary = json.loads((trial / "summary.json").read_text()) | {"seconds": 1.5}
    (trial / "summary.json").write_text(json.dumps(summary))
    [kept] = tuning.keep_chosen(tuned, tmp_path, Progress())
    assert load(kept.out).summary["seconds"] == 1.5


class Dying(Progress):
    def update(self, event: Any, member: int = 0) -> None:
        raise Killed


def _validation(out: Path) -> float:
    log = ClientLog(out)
    log.load()
    return float(np.nanmean(log.rounds[2]["val_accuracy_before"]))


def test_test_samples_choose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With test accuracies turned upside down the choice is the same."""
    plan = planned(tmp_path, ["local"], "lr=0.0001,0.3")
    chosen = tuning.tune(plan, Progress())["local"][0].values
    load = ClientLog.load

    def writable(self: ClientLog) -> None:
        load(self)
        self.rounds = {t: {k: v.copy() for k, v in r.items()} for t, r in self.rounds.items()}
        for rows in self.rounds.values():
            rows["accuracy_before"][:] = 1 - rows["accuracy_before"]

    monkeypatch.setattr(ClientLog, "load", writable)
    assert tuning.tune(plan, Progress())["local"][0].values == chosen == {"lr": 0.3}


def test_a_trial_that_diverged_cannot_win(tmp_path: Path) -> None:
    """Nor can one that diverged in one of its seeds."""
    plan = planned(tmp_path, ["local"], "lr=0.0001,0.3", seeds=(0, 1))
    tuning.tune(plan, Progress())
    [out] = [item.out for item in plan if item.out.name == "local-lr0.3-seed1"]
    summary = json.loads((out / "summary.json").read_text())
    (out / "summary.json").write_text(json.dumps(summary | {"diverged": True}))
    first, last = tuning.tune(plan, Progress())["local"]
    assert first.values == {"lr": 0.0001} and last.validation is None


@pytest.mark.parametrize(
    ("methods", "tunes", "said"),
    [
        (["fedavg", "pflego"], ["lr=0.1,0.2"], "pflego 1 trial and fedavg 2"),
        (
            ["fedavg", "fedprox"],
            ["lr=0.1,0.2", "fedprox.mu=0.1,1"],
            "fedavg 2 trials",
        ),
        (["fedavg"], ["lr=0.1"], "1 trial"),
        (["fedavg"], ["rounds=2,3"], "only a method's own settings"),
    ],
)
def test_unequal_trials_are_refused(
    tmp_path: Path, methods: list[str], tunes: list[str], said: str
) -> None:
    given: dict[str, Any] = {"sets": [s for s in SETS if not s.startswith("rounds")]}
    plan = plans(methods, [0], tmp_path, sweeps=tunes, **given)
    with pytest.raises(UserError, match=said):
        tuning.trials_of(plan)
    assert list(tmp_path.iterdir()) == []
