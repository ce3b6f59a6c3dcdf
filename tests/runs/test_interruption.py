"""Ctrl-C and SIGTERM."""

import signal
from pathlib import Path

import pytest

from idiolect.runs import checkpoint, directory
from idiolect.runs import execute as runs
from tests.runs.fake_simulation import build, resolved
from tests.runs.killed import essence, start, wait_for


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_round_and_save(tmp_path: Path, whole: Path, number: int) -> None:
    out = tmp_path / "run"
    process = start(out, 12, 0.1)
    wait_for(out, 1)
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == 130
    assert f"continue with: idiolect resume {out}" in said and "Traceback" not in said
    done = directory.read_events(out)[-1]["round"]
    assert checkpoint.rounds(out / "checkpoint")[0] == done
    runs.execute(resolved(), out, resume=True, build=build)
    assert essence(out) == essence(whole)
