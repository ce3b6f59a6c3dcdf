"""Damaged checkpoints, and how many are kept."""

from pathlib import Path

import pytest

from idiolect.errors import UserError
from idiolect.runs import checkpoint
from idiolect.runs import execute as runs
from tests.runs.fake_simulation import build, resolved
from tests.runs.killed import essence, killed_run


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
    with pytest.raises(UserError, match="all its checkpoints are damaged"):
        runs.execute(resolved(), out, resume=True, build=build)


def test_the_newest_two_checkpoints_are_kept(whole: Path) -> None:
    assert checkpoint.rounds(whole / "checkpoint") == [12, 9]
    assert len(list((whole / "checkpoint").iterdir())) == 4
