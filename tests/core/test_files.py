"""Files that are written whole."""

import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from idiolect.core import files
from idiolect.errors import UserError


def test_shared_memory_can_be_saved(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    files.write_tensors(tmp_path / "w.safetensors", {"a": base[:3], "b": base, "c": base[::2]})
    assert load_file(tmp_path / "w.safetensors")["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("what", ["a symbolic link", "a device", "a pipe", "a folder"])
def test_only_a_regular_file_is_replaced(tmp_path: Path, what: str) -> None:
    path, other = tmp_path / "report.html", tmp_path / "theirs"
    other.write_text("theirs")
    if what == "a symbolic link":
        path.symlink_to(other)
    elif what == "a device":
        try:  # one of our own: a real one would be gone if this test failed
            os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root can make a device")
    elif what == "a pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    before = os.lstat(path)
    with pytest.raises(UserError, match=f"{path.name} is {what}.*only a regular file"):
        files.write_text(path, "ours")
    assert os.lstat(path).st_ino == before.st_ino and other.read_text() == "theirs"
    assert {one.name for one in tmp_path.iterdir()} <= {"report.html", "theirs"}


def test_drafts_are_known_by_the_files_they_become(tmp_path: Path) -> None:
    names = [".a.json.12.tmp~", ".b.txt.12.tmp~", ".a.json.tmp~", "a.json"]
    for name in names:
        (tmp_path / name).write_text("x")
    (tmp_path / ".c.json.12.tmp~").symlink_to(tmp_path / "a.json")
    files.remove_drafts(tmp_path, "*.json")
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([*names[1:], ".c.json.12.tmp~"])
