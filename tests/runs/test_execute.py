"""A run that was killed and resumed equals one that was left alone."""

import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from idiolect import report
from idiolect.errors import UserError
from idiolect.runs import checkpoint
from idiolect.runs import execute as runs
from tests.runs.fake_simulation import build, resolved
from tests.runs.killed import essence, killed_run, start, wait_for


@pytest.mark.parametrize("at", [1, 2, 4, 8, 12])
def test_resume_equals_an_uninterrupted_run(tmp_path: Path, whole: Path, at: int) -> None:
    out = tmp_path / "run"
    killed_run(out, at)
    assert not report.load(out).finished
    runs.execute(resolved(), out, resume=True, build=build)
    assert essence(out) == essence(whole)


def test_sigkill_at_a_random_moment(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "run"
    process = start(out, 12, 0.03)
    wait_for(out, 1)
    time.sleep(random.uniform(0, 0.3))
    process.kill()
    process.communicate()
    runs.execute(resolved(), out, resume=True, build=build)
    assert essence(out) == essence(whole)


def test_resume_uses_as_many_threads_as_the_run_began_with(tmp_path: Path) -> None:
    killed_run(tmp_path / "run", 5)
    began, now = torch.get_num_threads(), []
    torch.set_num_threads(began + 1)
    try:
        runs.execute(
            resolved(),
            tmp_path / "run",
            resume=True,
            build=lambda config: now.append(torch.get_num_threads()) or build(config),
        )
    finally:
        torch.set_num_threads(began)
    assert now == [began]


def test_bad_settings_leave_no_directory(tmp_path: Path) -> None:
    def refuses(config: Any) -> Any:
        raise UserError("no")

    with pytest.raises(UserError):
        runs.execute(resolved(), tmp_path / "run", build=refuses)
    assert not (tmp_path / "run").exists()


def test_a_run_that_saves_every_round_saves_the_starting_point(tmp_path: Path) -> None:
    """Real sites cannot test it again once they have trained."""
    killed_run(tmp_path / "run", 1, checkpoint_every=1)
    assert checkpoint.rounds(tmp_path / "run" / "checkpoint")[0] == 0


@pytest.mark.parametrize(
    ("saving", "saved"),
    [
        (runs.Saving(), [2, 4, 6]),
        (runs.Saving(at_end=False), [2, 4]),
        (runs.Saving(seconds=1000.0), [6]),
        (runs.Saving(seconds=1000.0, at_end=False), []),
    ],
)
def test_when_a_run_is_saved(
    saving: runs.Saving, saved: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    monkeypatch.setattr(checkpoint, "save", lambda folder, round, *more: found.append(round))
    config = resolved(rounds=6, checkpoint_every=2)
    [summary] = runs.execute_together([config], [tmp_path / "run"], build=build, saving=saving)
    assert found == saved and summary["rounds"] == 6
