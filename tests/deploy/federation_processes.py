"""A federation of real processes on the loopback interface, for tests."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from idiolect.deploy.processes import free_port

ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join([str(ROOT / "src"), str(ROOT)])  # this checkout, whatever is installed
WAIT = 240.0  # seconds without a new round; the machine may be busy

needs_flower = pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None,
    reason="Flower is not installed: pip install 'idiolect[deploy]'",
)


class LocalProcesses:
    """Starts `idiolect server` and `idiolect client` in process groups of their own."""

    def __init__(self, folder: Path):
        self.folder, self.port = folder, free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def run(
        self, name: str, *command: str, module: str = "tests.deploy.command_line", **env: str
    ) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", module, *command],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1", **env},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def server(self, *command: str, keys: bool = False, name: str = "server", **env: str) -> None:
        secure = ["--keys", "keys"] if keys else ["--insecure"]
        self.run(name, "server", *command, *secure, "--port", str(self.port), **env)

    def client(
        self,
        client: int,
        *more: str,
        keys: bool = False,
        port: int | None = None,
        name: str = "",
        **how: Any,
    ) -> None:
        secure = ["--ca", "keys/ca.pem", "--key", f"keys/clients/client_{client}"]
        self.run(
            name or f"client{client}",
            "client",
            *("--server", f"127.0.0.1:{port or self.port}", "--id", str(client)),
            *("--data", "tests.deploy.client_data_function:load", "--state", f"state{client}"),
            *(secure if keys else ["--insecure"]),
            *more,
            **how,
        )

    def kill(self, name: str, alone: bool = False) -> None:
        """SIGKILL a process and its children at once, as a power cut would, or it `alone`."""
        process = self.processes.pop(name)
        for pid in [process.pid, *([] if alone else descendants(process.pid))]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def stop(self, name: str) -> int:
        process = self.processes.pop(name)
        if process.poll() is None:
            process.terminate()
        try:
            return process.wait(30)
        except subprocess.TimeoutExpired:
            self.processes[name] = process
            self.kill(name)
            return -9

    def end(self) -> None:
        for process in self.processes.values():  # all at once: each needs a few seconds
            if process.poll() is None:
                process.terminate()
        for name in list(self.processes):
            with contextlib.suppress(Exception):
                self.stop(name)

    def out(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text(errors="replace")

    def wait(self, what: str, done: Callable[[], Any], seconds: float = WAIT) -> Any:
        end, rounds = time.monotonic() + seconds, self._rounds()
        while not (found := done()):
            if (now := self._rounds()) != rounds:  # it goes on, however slowly
                end, rounds = time.monotonic() + seconds, now
            if time.monotonic() > end:
                raise AssertionError(f"{what} did not happen in {seconds:.0f} s\n{self.story()}")
            time.sleep(0.2)
        return found

    def _rounds(self) -> int:
        """Bytes that all runs have written about their rounds."""
        return sum(path.stat().st_size for path in self.folder.glob("*/events.jsonl"))

    def finished(self, name: str = "server", seconds: float = WAIT) -> int:
        process = self.processes[name]
        self.wait(f"the end of {name}", lambda: process.poll() is not None, seconds)
        return int(process.returncode)

    def story(self) -> str:
        """The ends of all logs, for a failed test."""
        logs = sorted({*self.folder.glob("*.out"), *self.folder.rglob("*.log")})
        tails = [f"--- {p.relative_to(self.folder)}\n{p.read_text(errors='replace')[-1500:]}"
                 for p in logs]  # fmt: skip
        return "\n".join(tails)[-12000:]


def descendants(pid: int) -> list[int]:
    """All processes below one (Linux)."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        below = parents.get(todo.pop(), [])
        found += below
        todo += below
    return found


def events(run: Path) -> list[dict[str, Any]]:
    from idiolect.runs import directory

    return directory.read_events(run)


def journal(run: Path, what: str | None = None) -> list[dict[str, Any]]:
    path = run / "flower" / "journal.jsonl"
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if what is None or line["what"] == what]


@contextlib.contextmanager
def federation(folder: Path) -> Iterator[LocalProcesses]:
    made = LocalProcesses(folder)
    try:
        yield made
    finally:
        made.end()
