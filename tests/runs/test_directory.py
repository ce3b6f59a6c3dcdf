"""Run directories: what they hold, and other people's files."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from idiolect.core import files
from idiolect.errors import UserError
from idiolect.runs import checkpoint, directory
from idiolect.runs import execute as runs
from tests.runs.fake_simulation import build, resolved
from tests.runs.killed import essence, killed_run, start, wait_for


def test_directory_holds_what_the_page_says(whole: Path) -> None:
    for name in directory.FILES:
        assert (whole / name).exists() or name == "models", name
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["rounds"] == 12 and summary["seed"] == 0 and summary["method"] == "fedavg"
    assert set(summary["accuracy"]) == {"best", "last", "last10"}
    assert {"mean", "pooled", "std", "p10", "worst"} <= set(summary["accuracy"]["best"])
    assert summary["bytes_up"] == 12 * 300 and summary["samples_per_second"] > 0
    assert [event["round"] for event in directory.read_events(whole)] == list(range(13))
    assert "aggregation_weight/round_0003" in load_file(whole / "matrices.safetensors")
    env = json.loads((whole / "env.json").read_text())
    assert env["packages"]["torch"] and env["command"]


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(out, 50, 0.1)
    try:
        wait_for(out, 0)
        with pytest.raises(UserError, match="another process"):
            runs.execute(resolved(rounds=50), out, resume=True, build=build)
    finally:
        process.kill()
        process.communicate()


def snapshot(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path): path.read_bytes() for path in files}


def test_nothing_is_overwritten(tmp_path: Path, whole: Path) -> None:
    before = snapshot(whole)
    with pytest.raises(UserError, match="another run"):
        runs.execute(resolved(seed=1), whole, build=build)
    with pytest.raises(UserError, match="another run"):
        runs.execute(resolved(seed=1), whole, resume=True, build=build)
    with pytest.raises(UserError, match="idiolect report"):
        runs.execute(resolved(), whole, build=build)
    assert snapshot(whole) == before
    out = tmp_path / "run"
    killed_run(out, 5)
    with pytest.raises(UserError, match="idiolect resume"):
        runs.execute(resolved(), out, build=build)
    (tmp_path / "alien").mkdir()
    (tmp_path / "alien" / "summary.json").write_text("mine")
    with pytest.raises(UserError, match=r"summary\.json but no config"):
        runs.execute(resolved(), tmp_path / "alien", build=build)
    (tmp_path / "file").write_text("mine")
    for taken in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match=r"another --out|cannot write"):
            runs.execute(resolved(), taken, build=build)
    assert (tmp_path / "file").read_text() == "mine"


def test_directory_that_is_not_writable(tmp_path: Path) -> None:
    place = tmp_path / "run"
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
    elif Path("/proc/self").exists():
        place = Path("/proc/self/run")  # root may write anywhere else
    else:
        pytest.skip("root may write anywhere")
    with pytest.raises(UserError, match="cannot write"):
        runs.execute(resolved(), place, build=build)


def test_full_disk(tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"

    def no_space(path: Path, tensors: Any) -> None:
        if "000006" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, tensors)

    write = files.write_tensors
    monkeypatch.setattr(files, "write_tensors", no_space)
    with pytest.raises(UserError, match="No space left on device; free some space"):
        runs.execute(resolved(), out, build=build)
    assert checkpoint.rounds(out / "checkpoint") == [3]
    monkeypatch.undo()
    runs.execute(resolved(), out, resume=True, build=build)
    assert essence(out) == essence(whole)


def test_resuming_a_finished_run_changes_nothing(whole: Path) -> None:
    before = snapshot(whole)
    summary = runs.execute(resolved(), whole, resume=True, build=build)
    assert summary["rounds"] == 12 and snapshot(whole) == before
