"""Client tables and logs over many rounds."""

from pathlib import Path

import torch

from idiolect.runs import execute as runs
from idiolect.runs import history
from tests.runs.fake_simulation import build, resolved
from tests.runs.killed import essence, killed_run


def test_large_logs_are_left_out_and_long_ones_thinned(tmp_path: Path) -> None:
    log = history.MatrixLog(tmp_path)
    for number in range(1, 201):
        log.keep(number, {"big": torch.zeros(1100, 1100), "mid": torch.zeros(512, 500)}, 200)
    assert "big" not in {name for logs in log.rounds.values() for name in logs}
    assert 40 < len(log.rounds) < 100 and 200 in log.rounds


def test_many_rounds_use_parts_and_lose_nothing(tmp_path: Path) -> None:
    left_alone, out = tmp_path / "alone", tmp_path / "run"
    runs.execute(resolved(rounds=60), left_alone, build=build)
    killed_run(out, 56, rounds=60)
    assert list(out.glob("clients.part-*"))
    runs.execute(resolved(rounds=60), out, resume=True, build=build)
    assert essence(out) == essence(left_alone) and not list(out.glob("*.part-*"))
