"""`idiolect compare`, on the real simulation with a handful of rounds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idiolect import report
from idiolect.runs import directory
from idiolect.simulation.side_by_side import Sweep
from tests.cli.calls import TINY, call


def test_compare_reports_and_skips_what_is_done() -> None:
    words = ["compare", "local", "fedavg", *TINY, "--seeds", "0,1", "--out", "c"]
    result = call(*words, "--set", "fedavg.epochs=2")
    assert result.exit_code == 0, result.output
    assert "gain over local" in result.stdout and "report.html" in result.stdout
    for name in ("compare.csv", "compare.md", "report.html", "fedavg-seed1/summary.json"):
        assert (Path("c") / name).exists()
    assert directory.read_config(Path("c/fedavg-seed0"))["method"]["epochs"] == 2
    again = call(*words, "--set", "fedavg.epochs=2", "--json")
    assert again.stderr.count("already finished") == 4
    assert [row["method"] for row in json.loads(again.stdout)] == ["local", "fedavg"]
    other = call(*words, "--set", "fedavg.epochs=3")
    assert other.exit_code == 2 and "another run" in other.stderr


def test_a_sweep_has_a_run_and_a_row_for_every_point() -> None:
    words = ["compare", "fedavg", "fedprox", *TINY, "--seeds", "0,1", "--out", "s"]
    words += ["--sweep", "fedprox.lr=0.01,5e-2", "--sweep", "mu=0.1,1", "--sweep", "epochs=1,2"]
    result = call(*words, "--set", "fedavg.lr=0.1", "--json")
    assert result.exit_code == 0, result.output
    points = [f"lr={lr} epochs={e} mu={mu}" for lr in (0.01, 0.05) for mu in (0.1, 1.0)
              for e in (1, 2)]  # fmt: skip
    labels = [row["method"] for row in json.loads(result.stdout)]
    assert labels == ["fedavg epochs=1", "fedavg epochs=2", *(f"fedprox {p}" for p in points)]
    assert all(row["seeds"] == [0, 1] for row in json.loads(result.stdout))
    assert "| fedprox lr=0.05 epochs=2 mu=1.0 |" in Path("s/compare.md").read_text()
    method = directory.read_config(Path("s/fedprox-lr0.05-mu1.0-epochs2-seed1"))["method"]
    assert (method["lr"], method["mu"], method["epochs"]) == (0.05, 1.0, 2)
    assert directory.read_config(Path("s/fedavg-epochs2-seed0"))["method"]["lr"] == 0.1
    assert "fedprox lr 0.01,0.05 mu 0.1,1.0 seed 0,1" in result.stderr  # four points in a stack
    again = call(*words, "--set", "fedavg.lr=0.1")
    assert again.stderr.count("already finished") == 20


def test_an_interrupted_sweep_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command again, after a stop in the middle, ends with the bits of one that ran
    through."""
    words = ["compare", "fedprox", *TINY, "--rounds", "4", "--checkpoint-every", "2"]
    words += ["--sweep", "mu=0.1,1", "--sweep", "momentum=0.0,0.5"]
    assert call(*words, "--out", "whole").exit_code == 0
    taken, step = [], Sweep.step

    def stopping(self: Sweep) -> Any:
        if len(taken) == 3:
            raise KeyboardInterrupt
        taken.append(1)
        return step(self)

    with monkeypatch.context() as patched:
        patched.setattr(Sweep, "step", stopping)
        stopped = call(*words, "--out", "part")
    assert stopped.exit_code == 130 and "after round 2" in stopped.stderr
    assert call(*words, "--out", "part").exit_code == 0
    names = sorted(path.name for path in Path("whole").iterdir() if path.is_dir())
    assert len(names) == 4
    for name in names:
        ours, theirs = (report.load(Path(out) / name) for out in ("part", "whole"))
        assert [event["round"] for event in ours.events] == [0, 1, 2, 3, 4]
        for column, values in theirs.table.items():
            np.testing.assert_array_equal(ours.table[column], values, err_msg=f"{name} {column}")
