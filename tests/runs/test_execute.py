"""Run directories: kill, resume, damage, full disks and other people's files."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from idiolect import report
from idiolect.core import files
from idiolect.errors import UserError
from idiolect.runs import checkpoint, directory, history
from idiolect.runs import execute as runs
from tests.runs.fake_simulation import FakeSimulation, N, build, resolved

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
    matrices = {k: v.tolist() for k, v in load_file(out / "matrices.safetensors").items()}
    return {"summary": summary, "events": events, "table": table, "matrices": matrices}


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of 12 rounds."""
    out = tmp_path_factory.mktemp("whole") / "run"
    runs.execute(resolved(), out, build=build)
    return out


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


@pytest.mark.parametrize("at", [1, 2, 4, 8, 12])
def test_resume_equals_an_uninterrupted_run(tmp_path: Path, whole: Path, at: int) -> None:
    out = tmp_path / "run"
    killed_run(out, at)
    assert not report.load(out).finished
    runs.execute(resolved(), out, resume=True, build=build)
    assert essence(out) == essence(whole)


def test_many_rounds_use_parts_and_lose_nothing(tmp_path: Path) -> None:
    left_alone, out = tmp_path / "alone", tmp_path / "run"
    runs.execute(resolved(rounds=60), left_alone, build=build)
    killed_run(out, 56, rounds=60)
    assert list(out.glob("clients.part-*"))
    runs.execute(resolved(rounds=60), out, resume=True, build=build)
    assert essence(out) == essence(left_alone) and not list(out.glob("*.part-*"))


def start(out: Path, rounds: int, pause: float, *more: str) -> "subprocess.Popen[str]":
    program = [sys.executable, str(HERE / "fake_simulation.py"), str(out), str(rounds), str(pause)]
    return subprocess.Popen([*program, *more], stderr=subprocess.PIPE, text=True)


def wait_for(out: Path, rounds: int) -> None:
    for _ in range(3000):  # a busy machine takes long to start
        if len(directory.read_events(out)) > rounds:
            return
        time.sleep(0.02)
    raise AssertionError("the run never got there")


def test_sigkill_at_a_random_moment(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "run"
    process = start(out, 12, 0.03)
    wait_for(out, 1)
    time.sleep(random.uniform(0, 0.3))
    process.kill()
    process.communicate()
    runs.execute(resolved(), out, resume=True, build=build)
    assert essence(out) == essence(whole)


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


@pytest.mark.parametrize("damage", ["truncate", "flip", "json", "missing"])
def test_damaged_newest_checkpoint(
    tmp_path: Path, whole: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    killed_run(out, 8)
    newest = out / "checkpoint" / "round_000006.safetensors"
    content = bytearray(newest.read_bytes())
    if damage == "truncate":
        newest.write_bytes(content[:-7])
    elif damage == "flip":
        content[-3] ^= 1
        newest.write_bytes(content)
    elif damage == "json":
        path = newest.with_suffix(".json")
        path.write_text(path.read_text().replace('"round": 6', '"round": 7', 1))
    else:
        newest.unlink()
    runs.execute(resolved(), out, resume=True, build=build)
    assert "checkpoint of round 6 is damaged" in capsys.readouterr().err
    assert essence(out) == essence(whole)


def test_all_checkpoints_damaged(tmp_path: Path) -> None:
    out = tmp_path / "run"
    killed_run(out, 8)
    for path in (out / "checkpoint").glob("*.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match="all 2 are damaged"):
        runs.execute(resolved(), out, resume=True, build=build)


def test_a_torn_last_line_of_events_is_ignored(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "run"
    killed_run(out, 5)
    with open(out / "events.jsonl", "a") as file:
        file.write('{"round": 5, "acc')
    runs.execute(resolved(), out, resume=True, build=build)
    assert essence(out) == essence(whole)


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


def test_divergence_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = runs.execute(
        resolved(), tmp_path / "run", build=lambda c: FakeSimulation(c["rounds"], diverges_in=4)
    )
    said = capsys.readouterr().err
    assert summary["diverged"] is True
    assert said.count("diverged in round 4") == 1 and "lower method.lr" in said


def test_models_every_last_and_best(tmp_path: Path) -> None:
    for when, folders in (
        ("last", ["last"]),
        ("best", ["best"]),
        ("every", [f"round_{t:04d}" for t in range(13)]),
    ):
        out = tmp_path / when
        killed_run(out, 8, save_models=when)
        summary = runs.execute(resolved(save_models=when), out, resume=True, build=build)
        assert sorted(path.name for path in (out / "models").iterdir()) == folders
        chosen = out / "models" / folders[-1]
        assert len(list(chosen.glob("client_*.safetensors"))) == N
        number = json.loads((chosen / "round.json").read_text())["round"]
        assert number == (summary["accuracy"]["best"]["round"] if when == "best" else 12)
        log = history.ClientLog(out)
        log.load()
        expected = log.rounds[number]["accuracy_before"][2]
        got = load_file(chosen / "client_0002.safetensors")["weight"]
        assert got.double().item() == expected


def test_shared_memory_can_be_saved(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    files.write_tensors(tmp_path / "w.safetensors", {"a": base[:3], "b": base, "c": base[::2]})
    assert load_file(tmp_path / "w.safetensors")["a"].tolist() == [0, 1, 2]


def test_large_logs_are_left_out_and_long_ones_thinned(tmp_path: Path) -> None:
    log = history.MatrixLog(tmp_path)
    for number in range(1, 201):
        log.keep(number, {"big": torch.zeros(600, 600), "mid": torch.zeros(512, 500)}, 200)
    assert "big" not in {name for logs in log.rounds.values() for name in logs}
    assert 40 < len(log.rounds) < 100 and 200 in log.rounds


def test_the_newest_two_checkpoints_are_kept(whole: Path) -> None:
    assert checkpoint.rounds(whole / "checkpoint") == [12, 9]
    assert len(list((whole / "checkpoint").iterdir())) == 4


def test_resuming_a_finished_run_changes_nothing(whole: Path) -> None:
    before = snapshot(whole)
    summary = runs.execute(resolved(), whole, resume=True, build=build)
    assert summary["rounds"] == 12 and snapshot(whole) == before
