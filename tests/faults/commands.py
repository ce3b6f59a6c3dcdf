"""Command lines under faults: what is run, how a user goes on, and what must be the same then."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.runs.killed import essence

HERE = Path(__file__).parent
SMALL = ("--clients", "2", "--rounds", "2", "--model", "linear", "--checkpoint-every", "1",
         "--set", "method.epochs=1")  # fmt: skip
TIMED = ("seconds", "seconds_eval", "samples_per_second")
PROGRAM = "tests.faults.fork_server:idiolect"


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int  # -9: killed
    met: int  # calls that changed a file
    said: str


@dataclass(frozen=True)
class Command:
    """A command line and how a user goes on after it was stopped: with the first of `then` that is
    not refused."""

    words: tuple[str, ...]
    then: tuple[tuple[str, ...], ...]
    before: tuple[tuple[str, ...], ...] = ()  # what is run first, without faults
    killed_at: int = 0  # the last of `before` is killed at this call
    call: str = PROGRAM
    kinds: tuple[str, ...] = ("kill", "full")

    @staticmethod
    def again(*words: str, **more: Any) -> Command:
        """A command that is simply given again."""
        return Command(words, (words,), **more)


class ForkServer:
    """Runs commands, each in a process of its own that has everything imported already."""

    def __init__(self, library: Path, said: Path) -> None:
        root = str(HERE.parent.parent)
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": path}
        env |= {"OMP_NUM_THREADS": "1", "IDIOLECT_COMMIT": "none"}
        self._said = said
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )

    def run(
        self, call: str, words: Sequence[str], folder: Path, at: int = 0, kind: str = "count"
    ) -> Outcome:
        order = {"call": call, "words": list(words), "folder": str(folder), "at": at}
        order |= {"kind": kind, "said": str(self._said)}
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        done = json.loads(self._process.stdout.readline())
        return Outcome(done["code"], done["met"], self._said.read_text(errors="replace"))

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def prepare(server: ForkServer, command: Command, folder: Path) -> None:
    """The state in which the command finds the folder."""
    folder.mkdir()
    for number, words in enumerate(command.before, 1):
        dies = number == len(command.before) and command.killed_at
        kind = "kill" if dies else "count"
        done = server.run(command.call, words, folder, command.killed_at if dies else 0, kind)
        assert done.code == (-9 if dies else 0), done.said


def go_on(server: ForkServer, command: Command, folder: Path) -> Outcome:
    """What a user does next."""
    for words in command.then:
        done = server.run(command.call, words, folder)
        if done.code != 2:
            break
    return done


def contents(folder: Path) -> dict[str, Any]:
    """What must not depend on faults: the names of all files, what every run recorded but for the
    time it took, all exported models byte for byte, and the cells and tables of recipes."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    found: dict[str, Any] = {"names": names}
    for config in sorted(folder.rglob("config.yaml")):
        run = config.parent
        recorded = essence(run)
        for timed in (recorded["summary"], *recorded["events"]):
            for key in TIMED:
                timed.pop(key, None)
        models = {str(p.relative_to(run)): p.read_bytes() for p in run.rglob("models/*/*")}
        found[str(run.relative_to(folder))] = recorded | {"models": models}
    for records in sorted(folder.rglob("runs.jsonl")):
        found[str(records.parent.relative_to(folder))] = _cells(records.parent)
    return found


def _cells(results: Path) -> dict[str, Any]:
    """What a recipe recorded, but for the time it took."""
    lines = (results / "runs.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        del record["machine"]["started"]
        for key in TIMED:
            record["summary"].pop(key, None)
    rows = list(csv.DictReader((results / "cells.csv").read_text().splitlines()))
    for row in rows:
        del row["started"], row["seconds"]
    written = [*results.glob("table.*"), results / "verdicts.json"]
    tables = {path.name: path.read_bytes() for path in written}
    return {"records": records, "cells": rows, "tables": tables}


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder
