"""Results may be damaged or somebody else's: one line says which file, and nothing hangs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from idiolect import methods
from idiolect.errors import UserError
from idiolect.papers.cells import Cell, cells
from idiolect.papers.evidence import Evidence
from idiolect.papers.results import Results
from idiolect.runs import checkpoint, revision
from tests.papers.tiny import tiny

STATS = {"mean": 0.5, "pooled": 0.5, "p10": 0.5, "worst": 0.5}
SUMMARY = {
    "rounds": 3, "accuracy": {"last": STATS, "best": STATS}, "clients": 4, "bytes_up": 0,
    "bytes_down": 0, "seconds": 1.0, "diverged": False,
    "protocol": {"name": "last", "value": 0.5, "what": "mean"},
}  # fmt: skip
FOLDER = Path("results/tiny")


def results() -> Results:
    return Results(Path("results"), tiny())


def record() -> tuple[Cell, dict[str, Any]]:
    cell = cells(tiny())[0]
    made = {"numbers": {"protocol": 50.0}, "config": cell.config, "summary": SUMMARY}
    return cell, json.loads(json.dumps(made | {"machine": {}}))


def put(text: str, name: str = "runs.jsonl") -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / name).write_text(text)


def test_a_sound_record_is_the_cells() -> None:
    cell, sound = record()
    put(json.dumps(sound) + "\n")
    found = results().of(cell)
    assert found is not None and found.shown("protocol") == 50


def test_a_run_that_diverged_is_told_although_it_has_a_number() -> None:
    cell, made = record()
    made["summary"]["diverged"] = True
    put(json.dumps(made) + "\n")
    found = Evidence(results())
    assert found.values[cell.row, cell.column, "protocol"] == {0: 50.0}
    assert found.diverged == {(cell.row, cell.column): {0}}


def test_runs_of_an_earlier_revision_of_their_method_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Settings say nothing of what a method made of them."""
    cell, made = record()
    method = type(methods.build(cell.config["method"]))
    put(json.dumps(made) + "\n")
    before = results()
    series = before.series_file(before.records[0])
    with monkeypatch.context() as patched:
        revision._of_ours.cache_clear()
        patched.setattr(method, "revision", property(lambda self: 2))
        assert results().of(cell) is None and not results().records
        made["machine"]["revision"] = 2
        put(json.dumps(made) + "\n")
        later = results().of(cell)
        assert later is not None and results().series_file(later) != series
    revision._of_ours.cache_clear()
    assert results().of(cell) is None


@pytest.mark.parametrize(
    "place",
    ["numbers", "numbers protocol", "config", "config seed", "config rounds", "config method",
     "config participation", "summary", "summary seconds", "machine"],
)  # fmt: skip
@pytest.mark.parametrize("value", ["\x1b[31m<script>", [], -1.5, None])
def test_a_damaged_record_is_one_line(place: str, value: Any) -> None:
    if place == "numbers protocol" and value in (-1.5, None):
        return  # a number may be lower than 0, or not there
    _, damaged = record()
    inner = damaged
    *path, last = place.split()
    for key in path:
        inner = inner[key]
    inner[last] = value
    put(json.dumps(damaged) + "\n")
    with pytest.raises(UserError, match=r"runs\.jsonl, line 1, is damaged: ") as told:
        results()
    assert "\x1b" not in str(told.value)


@pytest.mark.parametrize(
    "more",
    [{"machine": {"commit": "=1+1"}}, {"machine": {"device": "\x1b[31m"}}, {"machine": {"a": []}},
     {"quick": "x"}, {"borrowed": 7 * [1]}, {"another": 1}],
)  # fmt: skip
def test_words_that_do_something_are_refused(more: dict[str, Any]) -> None:
    _, damaged = record()
    put(json.dumps(damaged | more) + "\n")
    with pytest.raises(UserError, match=r"runs\.jsonl, line 1, is damaged: "):
        results()


def test_reasons_cannot_drive_the_terminal() -> None:
    put(json.dumps({"fedavg/even seed 0": "\x1b[31mred"}), "failed.json")
    assert list(results().failures().values()) == ["\\x1b[31mred"]


@pytest.mark.parametrize("text", ["{", "[]\n", "7\n", '{"config": Infinity}\n', "[" * 100_000])
def test_what_is_no_record_is_one_line(text: str) -> None:
    put(text)
    with pytest.raises(UserError, match=r"runs\.jsonl.* is damaged"):
        results()


@pytest.mark.parametrize("text", ["7", "{", '{"fedavg/even seed 0": 7}', '{"mnist": {"how": 1}}'])
@pytest.mark.parametrize("name", ["failed.json", "no_data.json"])
def test_damaged_reasons_are_one_line(name: str, text: str) -> None:
    put(text, name)
    with pytest.raises(UserError, match=rf"{name} is damaged"):
        results().states()


def test_a_pipe_is_not_read() -> None:
    put("")
    (FOLDER / "runs.jsonl").unlink()
    os.mkfifo(FOLDER / "runs.jsonl")
    with pytest.raises(UserError, match="neither a file nor a folder"):
        results()


def test_what_a_killed_command_left_half_written_goes() -> None:
    for name in (".runs.jsonl.7.tmp~", ".table.md.7.tmp~", ".notes.7.tmp~", "notes"):
        put("{", name)
    results().fail(cells(tiny())[0], "a reason")
    assert sorted(os.listdir(FOLDER)) == [".lock", ".notes.7.tmp~", "failed.json", "notes"]


def test_checkpoints_are_deleted_by_name_and_through_no_link() -> None:
    Path("run/checkpoint").mkdir(parents=True)
    checkpoint.begin(Path("run/checkpoint"))
    for name in ("round_000002.json", "round_000002.safetensors", "mine"):
        Path("run/checkpoint", name).touch()
    Path("linked").symlink_to("run/checkpoint")
    checkpoint.discard(Path("linked"))
    assert len(os.listdir("run/checkpoint")) == 4
    checkpoint.discard(Path("run/checkpoint"))
    assert os.listdir("run/checkpoint") == ["mine"]
    Path("run/checkpoint/mine").unlink()
    checkpoint.discard(Path("run/checkpoint"))
    assert not Path("run/checkpoint").exists()
