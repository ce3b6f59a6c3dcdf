"""From which round a run goes on, and that nothing is changed before that is clear."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from idiolect.errors import UserError
from idiolect.runs import checkpoint, directory
from idiolect.runs import compare as comparison
from idiolect.runs import execute as runs
from idiolect.runs.progress import Progress
from tests.runs.fake_simulation import build, resolved
from tests.runs.killed import Killed, essence, killed_run, snapshot

FLAGS = {"rounds": 6, "checkpoint_every": 2, "model": {"name": "mlp"},
         "split": {"name": "dirichlet", "clients": 5}}  # fmt: skip


def stacked(out: Path, seeds: tuple[int, ...] = (0, 1, 2)) -> list[comparison.Plan]:
    return comparison.plans(["fedavg"], seeds, out, flags=FLAGS, sets=["method.epochs=1"])


@pytest.fixture(scope="module")
def whole_stack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stack")
    comparison.run_all(stacked(out), Progress())
    return out


def kill_at_save(out: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison whose process vanishes when it saves its n-th checkpoint."""
    saved: list[int] = []
    save = checkpoint.save

    def dying(*given: Any) -> None:
        saved.append(1)
        if len(saved) == number:
            raise Killed
        save(*given)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save", dying)
        with pytest.raises(Killed):
            comparison.run_all(stacked(out), Progress())


def numbers(out: Path) -> dict[str, Any]:
    """Everything that a run of the stack recorded, but for the time it took."""
    found = essence(out)
    for timed in (found["summary"], *found["events"]):
        for key in ("seconds", "seconds_eval", "samples_per_second"):
            timed.pop(key, None)
    return found


@pytest.mark.parametrize("number", [2, 3, 5, 6, 8, 9])
def test_kill_between_the_checkpoints_of_a_stack(
    tmp_path: Path, whole_stack: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    kill_at_save(tmp_path, number, monkeypatch)
    comparison.run_all(stacked(tmp_path), Progress())
    for item in stacked(tmp_path):
        assert numbers(item.out) == numbers(whole_stack / item.out.name), item.out.name


def test_the_order_of_a_stack_is_that_of_its_checkpoints(
    tmp_path: Path, whole_stack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_at_save(tmp_path, 5, monkeypatch)
    comparison.run_all(stacked(tmp_path, (2, 1, 0)), Progress())
    for item in stacked(tmp_path):
        assert numbers(item.out) == numbers(whole_stack / item.out.name), item.out.name


def test_a_run_that_leaves_its_stack_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kill_at_save(tmp_path, 4, monkeypatch)
    one = stacked(tmp_path)[1]
    runs.execute(one.config, one.out, resume=True)
    assert "2 of the runs it was computed with do not go on with it" in capsys.readouterr().err


def damage(out: Path, how: str) -> None:
    folder = out / "checkpoint"
    if how == "missing":
        shutil.rmtree(folder)
    elif how == "empty":
        for path in folder.iterdir():
            path.unlink()
    elif how == "a file":
        shutil.rmtree(folder)
        folder.write_text("mine")
    elif how == "no permission":  # also for root, who may read everything
        for path in folder.glob("*.json"):
            path.unlink()
            path.mkdir()
    else:
        for path in folder.glob("*.json"):
            path.write_text("{}")


@pytest.mark.parametrize("how", ["missing", "empty", "a file", "no permission", "damaged"])
@pytest.mark.parametrize("at", [2, 5, 8])
def test_history_outlives_a_lost_checkpoint(tmp_path: Path, whole: Path, how: str, at: int) -> None:
    out = tmp_path / "run"
    killed_run(out, at)
    damage(out, how)
    before = snapshot(out)
    with pytest.raises(UserError, match="nothing was changed"):
        runs.execute(resolved(), out, resume=True, build=build)
    assert snapshot(out) == before
    if how == "a file":
        return
    runs.execute(resolved(), out, resume=True, build=build, from_start=True)
    assert essence(out) == essence(whole)
    assert len(directory.read_events(out / "earlier-1")) == at


@pytest.mark.parametrize("name", ["events.jsonl", "clients.parquet"])
def test_lost_rounds_are_an_error_and_nothing_is_cut(tmp_path: Path, name: str) -> None:
    out = tmp_path / "run"
    killed_run(out, 8)
    (out / name).write_bytes((out / name).read_bytes()[:40])
    before = snapshot(out)
    with pytest.raises(UserError, match=name):
        runs.execute(resolved(), out, resume=True, build=build)
    assert snapshot(out) == before


def test_killed_before_the_first_checkpoint(
    tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    killed_run(out, 3)
    runs.execute(resolved(), out, resume=True, build=build)
    assert "stopped before its first checkpoint" in capsys.readouterr().err
    assert essence(out) == essence(whole)
