"""What is written while a run goes on."""

from pathlib import Path

import pytest

from idiolect.runs import execute as runs
from tests.runs.fake_simulation import FakeSimulation, build, resolved
from tests.runs.killed import essence, killed_run


def test_a_torn_last_line_of_events_is_ignored(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "run"
    killed_run(out, 5)
    with open(out / "events.jsonl", "a") as file:
        file.write('{"round": 5, "acc')
    runs.execute(resolved(), out, resume=True, build=build)
    assert essence(out) == essence(whole)


def test_divergence_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = runs.execute(
        resolved(), tmp_path / "run", build=lambda c: FakeSimulation(c["rounds"], diverges_in=4)
    )
    said = capsys.readouterr().err
    assert summary["diverged"] is True
    assert said.count("diverged in round 4") == 1 and "lower method.lr" in said
