"""Ending and continuing real runs from the page; the result is that of an uninterrupted run."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the page needs starlette: pip install 'idiolect[ui]'")
httpx = pytest.importorskip("httpx")

import torch
from safetensors.torch import load_file

from idiolect.runs import config as settings
from idiolect.runs import execute as runs
from tests.ui.pages import environment, served, small_run, wait_until

OPTIONS = {"rounds": 60, "checkpoint_every": 50, "device": "cpu", "method": {"name": "fedavg"}}
SETS = ["method.epochs=1", "split.name=iid", "split.clients=4"]


def start(out: Path) -> subprocess.Popen[str]:
    """`idiolect run … --ui`."""
    words = ["run", "fedavg", "--rounds", "60", "--checkpoint-every", "50", "--device", "cpu"]
    words += [word for item in SETS for word in ("--set", item)]
    return subprocess.Popen(
        [sys.executable, "-m", "idiolect", *words, "--out", str(out), "--ui"],
        env=environment(BROWSER="true"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def numbers(run: Path) -> list[Any]:
    """Everything a run says, without times."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_bytes().splitlines()]
    timed = ("time", "seconds", "seconds_eval")
    return [{key: v for key, v in event.items() if key not in timed} for event in events]


def test_a_run_stopped_on_its_page_and_continued_is_bit_for_bit_the_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page that `--ui` opens beside a run ends it; another page continues it."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    stopped, whole = tmp_path / "runs/stopped", tmp_path / "whole"
    going = start(stopped)
    try:
        assert going.stderr is not None
        line = going.stderr.readline()
        assert line.startswith("page: http://127.0.0.1:")
        address = line.split()[1].split("#")[0]
        key = re.search(r'name="idiolect-key" content="([^"]+)"', httpx.get(address).text)
        assert key is not None
        wait_until(lambda: state(address) == "running")
        assert ask(address, "resume", key[1]).status_code == 400  # it is running
        assert ask(address, "stop", key[1]).json() == {"done": True}
        going.communicate(timeout=60)
        assert going.returncode == 130
    finally:
        going.kill()
        going.wait()
    assert not (stopped / "summary.json").exists() and not (stopped / ".stop").exists()
    assert 2 < len(numbers(stopped)) < 61
    with served(tmp_path / "runs", tmp_path / "logs") as (address, page):
        wait_until(lambda: state(address) == "stopped")
        assert ask(address, "resume", page.key).json() == {"done": True}
        uninterrupted(whole)
        wait_until((stopped / "summary.json").exists, 120)
        wait_until(lambda: state(address) == "finished")
    assert numbers(stopped) == numbers(whole)
    last = "checkpoint/round_000060.safetensors"
    ours, theirs = load_file(stopped / last), load_file(whole / last)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value.numpy().tobytes() == theirs[name].numpy().tobytes(), name


def state(address: str) -> str:
    found = httpx.get(f"{address.rstrip('/')}/api/runs", timeout=30).json()["runs"]
    return next((run["state"] for run in found if run["round"] > 2), "")


def ask(address: str, what: str, key: str) -> Any:
    path = f"{address.rstrip('/')}/api/{what}?run=stopped"
    return httpx.post(path, headers={"x-idiolect": key}, timeout=30)


def uninterrupted(out: Path) -> None:
    """The same run, in this process and with as many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        runs.execute(settings.resolve(None, OPTIONS, SETS), out)
    finally:
        torch.set_num_threads(before)


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
