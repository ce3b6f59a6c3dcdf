"""Run directories, and the page over them served by a real server on this machine."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from idiolect.runs import execute as runs
from tests.runs.fake_simulation import FakeSimulation, N, build, resolved

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests/runs/fake_simulation.py"


class Squares(FakeSimulation):
    """Logs a client × client matrix."""

    def step(self) -> Any:
        done = super().step()
        done.logs["similarity"] = torch.outer(self.weights, self.weights)
        return done


class Errors(FakeSimulation):
    """Its clients are judged by rmse, of which less is better, in [0, 30]."""

    def _done(self, started: list[int], loss: float) -> Any:
        done = super()._done(started, loss)
        done.clients = {
            name.replace("accuracy", "rmse"): 30 * column if "accuracy" in name else column
            for name, column in done.clients.items()
        }
        return done


def some_runs(root: Path, methods: tuple[str, ...] = ("local", "fedavg", "fedper")) -> Path:
    for method in methods:
        config = resolved(method={"name": method}, rounds=4)
        start = torch.linspace(0.1, 0.5, N) + 0.1 * len(method) / 6
        runs.execute(
            config,
            root / f"{method}-seed0",
            build=lambda c, s=start: Squares(c["rounds"], weights=s.clone()),
        )
    return root


def small_run(out: Path, **changes: Any) -> Path:
    runs.execute(resolved(rounds=3, **changes), out, build=build)
    return out


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1", **more}


@contextmanager
def going_run(out: Path, rounds: int, pause: float) -> Iterator[subprocess.Popen[bytes]]:
    """A run without learning, in a process of its own."""
    words = [sys.executable, str(PROGRAM), str(out), str(rounds), str(pause)]
    going = subprocess.Popen(words, env=environment(), stderr=subprocess.DEVNULL)
    try:
        wait_until((out / "events.jsonl").exists)
        yield going
    finally:
        going.kill()
        going.wait()


@contextmanager
def served(root: Path, logs: Path, **more: Any) -> Iterator[tuple[str, Any]]:
    """The address of the page over `root`, and the page."""
    import uvicorn

    from idiolect.ui.web import Page

    page = Page(root, logs, **more)
    config = uvicorn.Config(
        page.app(),
        port=0,
        log_level="error",
        ws="none",
        timeout_graceful_shutdown=1,
        lifespan="off",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}", page
    finally:
        page.close()
        server.should_exit = True
        thread.join(10)
        for process in page.control.started.values():
            process.wait(30)


@contextmanager
def asking(root: Path, logs: Path, **more: Any) -> Iterator[Any]:
    """An HTTP client of the page over `root`."""
    import httpx

    with served(root, logs, **more) as (address, _), httpx.Client(base_url=address) as client:
        yield client


def wait_until(fact: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := fact()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
    return found
