"""Runs that are killed, and what must not depend on it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from idiolect.runs import directory, history
from idiolect.runs import execute as runs
from tests.runs.fake_simulation import FakeSimulation, resolved

HERE = Path(__file__).parent


def essence(out: Path) -> dict[str, Any]:
    """What must not depend on how often a run was stopped."""
    summary = json.loads((out / "summary.json").read_text())
    events = directory.read_events(out)
    for event in events:
        del event["time"]
    log = history.ClientLog(out)
    log.load()
    table = {name: column.tobytes() for name, column in log.table().items()}
    logs = history.MatrixLog(out)
    logs.load()
    matrices = {t: {k: v.tolist() for k, v in log.items()} for t, log in logs.rounds.items()}
    return {"summary": summary, "events": events, "table": table, "matrices": matrices}


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder; links are not followed."""
    found = (Path(at) / name for at, _, names in os.walk(folder) for name in names)
    return {str(p): p.read_bytes() for p in found if p.is_file() and p.name != ".lock"}


class Killed(BaseException):
    pass


def killed_run(out: Path, at: int, **changes: Any) -> None:
    """A run whose process vanishes during round `at`."""

    class Dies(FakeSimulation):
        def step(self) -> Any:
            if self.round + 1 == at:
                raise Killed
            return super().step()

    with pytest.raises(Killed):
        runs.execute(resolved(**changes), out, build=lambda c: Dies(c["rounds"]))


def start(out: Path, rounds: int, pause: float, *more: str) -> "subprocess.Popen[str]":
    program = [sys.executable, str(HERE / "fake_simulation.py"), str(out), str(rounds), str(pause)]
    return subprocess.Popen([*program, *more], stderr=subprocess.PIPE, text=True)


def wait_for(out: Path, rounds: int) -> None:
    for _ in range(3000):  # a busy machine takes long to start
        if len(directory.read_events(out)) > rounds:
            return
        time.sleep(0.02)
    raise AssertionError("the run never got there")
