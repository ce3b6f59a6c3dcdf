"""Run directories: what they hold, and other people's files."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from idiolect.core import files
from idiolect.errors import UserError
from idiolect.runs import checkpoint, directory
from idiolect.runs import execute as runs
from tests.runs.fake_simulation import build, resolved
from tests.runs.killed import Killed, essence, killed_run, snapshot, start, wait_for


def test_directory_holds_what_the_page_says(whole: Path) -> None:
    for name in directory.FILES:
        assert (whole / name).exists() or name in ("models", "split.json"), name
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
    assert checkpoint.rounds(out / "checkpoint")[0] == 3
    monkeypatch.undo()
    runs.execute(resolved(), out, resume=True, build=build)
    assert essence(out) == essence(whole)


def test_resuming_a_finished_run_changes_nothing(whole: Path) -> None:
    before = snapshot(whole)
    summary = runs.execute(resolved(), whole, resume=True, build=build)
    assert summary["rounds"] == 12 and snapshot(whole) == before


def outside(tmp_path: Path) -> Path:
    """Someone else's folder, with the names that a run uses."""
    other = tmp_path / "other"
    for name in ("round_0011", "round_0012", "last", ".best.new"):
        (other / name).mkdir(parents=True)
        (other / name / "client_0000.safetensors").write_text("theirs")
    return other


@pytest.mark.parametrize("name", ["models", "models/round_0008", "checkpoint", "events.jsonl"])
def test_resume_deletes_and_writes_nothing_through_a_link(tmp_path: Path, name: str) -> None:
    out, other = tmp_path / "run", outside(tmp_path)
    killed_run(out, 9, save_models="every")
    place = out / name
    (other / place.name).mkdir(exist_ok=True)
    target = other if name == "models" else other / place.name
    if name == "events.jsonl":
        target = other / "events.txt"
        target.write_text("theirs")
    shutil.move(place, tmp_path / "moved")
    place.symlink_to(target)
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match=f"{place.name} is a symbolic link"):
        runs.execute(resolved(save_models="every"), out, resume=True, build=build)
    assert snapshot(tmp_path) == before


def test_drafts_of_others_are_kept(tmp_path: Path) -> None:
    out = tmp_path / "run"
    killed_run(out, 8, save_models="every")
    drafts = [".notes.txt.12.tmp~", ".events.jsonl.tmp~", "mine/.events.jsonl.12.tmp~",
              "checkpoint/.model.pt.3.tmp~", "models/.x.tmp~"]  # fmt: skip
    ours = [".events.jsonl.12.tmp~", "checkpoint/.round_000009.safetensors.12.tmp~"]
    (out / "mine").mkdir()
    for name in (*drafts, *ours):
        (out / name).write_text("x")
    runs.execute(resolved(save_models="every"), out, resume=True, build=build)
    assert [name for name in drafts if not (out / name).exists()] == []
    assert [name for name in ours if (out / name).exists()] == []


def test_an_export_with_files_of_others_is_not_deleted(tmp_path: Path) -> None:
    out = tmp_path / "run"
    killed_run(out, 9, save_models="every")
    (out / "models" / "round_0008" / "notes.txt").write_text("mine")
    before = snapshot(out)
    with pytest.raises(UserError, match=r"notes\.txt is not of the run"):
        runs.execute(resolved(save_models="every"), out, resume=True, build=build)
    assert snapshot(out) == before


@pytest.mark.parametrize("stage", ["env.json", "begun.json", "config.yaml"])
def test_a_folder_that_was_not_begun_is_taken_over(
    tmp_path: Path, whole: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    write = files.write_text

    def dying(path: Path, text: str) -> None:
        if path.name == stage:
            raise Killed
        write(path, text)

    with monkeypatch.context() as patched:
        patched.setattr(files, "write_text", dying)
        with pytest.raises(Killed):
            runs.execute(resolved(), out, build=build)
    if stage != "env.json":
        with pytest.raises(UserError, match="was not begun"):
            directory.read_config(out)
    runs.execute(resolved(), out, build=build)
    assert essence(out) == essence(whole)


def test_the_environment_of_others_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "env.json").write_text('{"PATH": "/bin"}')
    with pytest.raises(UserError, match=r"env\.json but no config"):
        runs.execute(resolved(), out, build=build)
    assert (out / "env.json").read_text() == '{"PATH": "/bin"}'
