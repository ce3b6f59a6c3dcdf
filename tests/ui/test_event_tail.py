"""Events are followed as they are written, and never read twice."""

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the page needs starlette: pip install 'idiolect[ui]'")

from idiolect.ui.event_tail import EventTail


def lines(start: int, stop: int) -> bytes:
    return b"".join(json.dumps({"round": n}).encode() + b"\n" for n in range(start, stop))


def test_each_byte_of_100000_lines_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail, seen = EventTail(path), []
    for start in range(0, 100_000, 1000):
        with path.open("ab") as file:
            file.write(lines(start, start + 1000))
        seen += [event["round"] for event in tail.fresh()[1]]
    assert seen == list(range(100_000))
    assert tail.bytes_read == path.stat().st_size
    assert tail.fresh() == (False, []) and tail.bytes_read == path.stat().st_size


def test_a_line_is_told_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(lines(0, 2) + b'{"rou')
    tail = EventTail(path)
    assert [event["round"] for event in tail.fresh()[1]] == [0, 1]
    with path.open("ab") as file:
        file.write(b'nd": 2}\n')
    assert tail.fresh() == (False, [{"round": 2}])


@pytest.mark.parametrize("how", ["cut in place", "written anew"])
def test_a_resumed_run_begins_anew(how: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(lines(0, 9))
    tail = EventTail(path)
    assert tail.fresh()[0]
    if how == "cut in place":
        os.truncate(path, len(lines(0, 4)))
    else:
        (tmp_path / "draft").write_bytes(lines(0, 12))
        os.replace(tmp_path / "draft", path)
    anew, events = tail.fresh()
    assert anew and [event["round"] for event in events][:4] == [0, 1, 2, 3]


@pytest.mark.parametrize("damage", [b"\xff\n", b"[" * 100_000 + b"\n", b"x" * (2 << 20)])
def test_what_follows_a_damaged_line_is_no_record(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(lines(0, 3) + damage)
    tail = EventTail(path)
    assert len(tail.fresh()[1]) == 3
    tail.fresh()
    with path.open("ab") as file:
        file.write(b"\n" + lines(3, 5))
    assert tail.fresh()[1] == []


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "nothing"])
def test_only_plain_files_are_opened(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "secret").write_bytes(lines(0, 3))
        path.symlink_to(tmp_path / "secret")
    elif kind == "folder":
        path.mkdir()
    assert EventTail(path).fresh() == (False, [])
