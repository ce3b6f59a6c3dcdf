"""Ending and continuing real runs from the page; the result is that of an uninterrupted run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the page needs starlette: pip install 'idiolect[ui]'")
httpx = pytest.importorskip("httpx")

from safetensors.torch import load_file

from tests.ui.pages import environment, served, small_run, wait_until

RUN = ["run", "fedavg", "--rounds", "60", "--clients", "4", "--checkpoint-every", "50"]
RUN += ["--set", "method.epochs=1", "--set", "split.name=iid", "--device", "cpu"]


def start(out: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "idiolect", *RUN, "--out", str(out)]
    return subprocess.Popen(
        words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def numbers(run: Path) -> list[Any]:
    """Everything a run says, without times."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_bytes().splitlines()]
    timed = ("time", "seconds", "seconds_eval")
    return [{key: v for key, v in event.items() if key not in timed} for event in events]


def test_a_stopped_and_continued_run_is_bit_for_bit_the_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    stopped, whole = tmp_path / "runs/stopped", tmp_path / "whole"
    stopped.parent.mkdir()
    with served(tmp_path / "runs", tmp_path / "logs") as (address, page):

        def state() -> str:
            found = httpx.get(f"{address}/api/runs").json()["runs"]
            return next((run["state"] for run in found if run["round"] > 2), "")

        def ask(what: str) -> Any:
            key = {"x-idiolect": page.key}
            return httpx.post(f"{address}/api/{what}?run=stopped", headers=key, timeout=30)

        first = start(stopped)
        try:
            wait_until(lambda: state() == "running")
            assert ask("resume").status_code == 400  # it is running
            assert ask("stop").json() == {"done": True}
            assert first.wait(60) == 130
        finally:
            first.kill()
            first.wait()
        assert not (stopped / "summary.json").exists() and not (stopped / ".stop").exists()
        assert 2 < len(numbers(stopped)) < 61
        wait_until(lambda: state() == "stopped")
        assert ask("resume").json() == {"done": True}
        assert start(whole).wait(120) == 0
        wait_until((stopped / "summary.json").exists, 120)
        wait_until(lambda: state() == "finished")
    assert numbers(stopped) == numbers(whole)
    last = "checkpoint/round_000060.safetensors"
    ours, theirs = load_file(stopped / last), load_file(whole / last)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value.numpy().tobytes() == theirs[name].numpy().tobytes(), name


def test_a_run_that_cannot_be_continued_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder named like the program, where the page was started, is not run."""
    run = small_run(tmp_path / "run")
    (run / "summary.json").unlink()
    (tmp_path / "idiolect").mkdir()
    (tmp_path / "idiolect/__init__.py").touch()
    (tmp_path / "idiolect/__main__.py").write_text("open('harmed', 'w')")
    for name, value in environment(PYTHONPATH=str(Path(__file__).parents[2] / "src")).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (run / "checkpoint").rename(run / "lost")
    with served(tmp_path, tmp_path / ".logs") as (address, page):
        key = {"x-idiolect": page.key}
        assert httpx.post(f"{address}/api/resume?run=run", headers=key).status_code == 200

        def problem() -> str:
            return str(httpx.get(f"{address}/api/runs").json()["runs"][0]["problem"])

        assert "checkpoint" in wait_until(problem)
    assert not (tmp_path / "harmed").exists()


def test_a_run_opens_the_page_beside_it(tmp_path: Path) -> None:
    words = [*RUN, "--out", str(tmp_path / "runs/mine"), "--ui"]
    words[words.index("60")] = "40"
    going = subprocess.Popen(
        [sys.executable, "-m", "idiolect", *words],
        env=environment(BROWSER="true"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert going.stderr is not None
        line = going.stderr.readline()
        assert line.startswith("page: http://127.0.0.1:")
        address = line.split()[1].split("#")[0]

        def round_of_it() -> int:
            found = httpx.get(f"{address}api/runs").json()["runs"]
            return found[0]["round"] if found and found[0]["state"] == "running" else 0

        wait_until(round_of_it)
        going.communicate(timeout=120)
        assert going.returncode == 0 and (tmp_path / "runs/mine/summary.json").exists()
    finally:
        going.kill()
        going.wait()
