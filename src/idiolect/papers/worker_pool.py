"""Several worker processes at once: what they are given, what they tell, and how they end.

A worker that fails is replaced by a new one, so that no job stops the others. Workers are in a
session of their own: Ctrl-C reaches this program alone, which ends them by closing their stdin.
"""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from idiolect.papers.planner import CellJob

SAVING = 120.0  # seconds a worker gets to save its runs after the round under way


@dataclass
class WorkerProcess:
    """One running `python -m idiolect.papers.cell_worker`."""

    process: subprocess.Popen[str]
    log: Path
    job: CellJob | None = None
    round: int = 0
    rounds: int = 1
    began: float = field(default_factory=time.monotonic)
    leaving: bool = False  # it said that it ends

    @property
    def share(self) -> float:
        """How much of its job is done."""
        return min(1.0, max(0, self.round) / max(1, self.rounds))


Event = tuple[WorkerProcess, dict[str, Any]]


class WorkerPool:
    """Runs jobs in up to `size` processes."""

    def __init__(
        self, size: int, threads: int | None = None, allow_code: Collection[str] = ()
    ) -> None:
        self.size, self.threads, self.allow_code = size, threads, sorted(allow_code)
        self.workers: list[WorkerProcess] = []
        self.events: queue.Queue[Event] = queue.Queue()
        self.logs = tempfile.TemporaryDirectory(
            prefix="idiolect-workers-", ignore_cleanup_errors=True
        )
        self.started = 0

    @property
    def running(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.job is not None]

    @property
    def free(self) -> bool:
        return len(self.running) < self.size

    def give(self, job: CellJob) -> None:
        """Start a job in an idle worker, or in a new one."""
        idle = [worker for worker in self.workers if worker.job is None and not worker.leaving]
        worker = idle[0] if idle else self._start()
        worker.job, worker.round, worker.began = job, 0, time.monotonic()
        runs = {str(o): c.config for c, o in zip(job.cells, job.outs, strict=True)}
        told = [{"config": config, "out": out} for out, config in runs.items()]
        text = json.dumps({"runs": told, "allow_code": self.allow_code})
        assert worker.process.stdin is not None
        with suppress(BrokenPipeError):  # it died: its end is the next event
            worker.process.stdin.write(text + "\n")
            worker.process.stdin.flush()

    def next_event(self, timeout: float) -> Event | None:
        """What a worker told; `ended` when its process is gone."""
        try:
            worker, event = self.events.get(timeout=max(0.01, timeout))
        except queue.Empty:
            return None
        worker.leaving |= event.get("ends", False)
        if event["event"] == "round":
            worker.round, worker.rounds = event["round"], event["rounds"]
        if event["event"] == "ended":
            self.workers.remove(worker)
            _close_stdin(worker)  # not earlier: it may be given a job until its end is heard
            event["log"] = _tail(worker.log)
        return worker, event

    def stop(self, told: Callable[[WorkerProcess, dict[str, Any]], None], at_once: bool) -> None:
        """End all workers: after their round, with everything saved, or at once."""
        for worker in self.workers:
            _close_stdin(worker)
            if at_once:
                worker.process.kill()
        until = time.monotonic() + SAVING
        while self.workers and time.monotonic() < until:
            found = self.next_event(0.5)
            if found is not None:
                told(*found)
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()

    def close(self) -> None:
        """Remove what the workers wrote to stderr."""
        self.logs.cleanup()

    def _start(self) -> WorkerProcess:
        self.started += 1
        log = Path(self.logs.name, f"worker-{self.started}.log")
        environment = dict(os.environ)
        if self.threads is not None:
            environment.setdefault("OMP_NUM_THREADS", str(self.threads))
        with log.open("w", encoding="utf-8") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "idiolect.papers.cell_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                start_new_session=True,
            )
        worker = WorkerProcess(process, log)
        self.workers.append(worker)
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        return worker

    def _listen(self, worker: WorkerProcess) -> None:
        assert worker.process.stdout is not None
        with worker.process.stdout as lines:
            for line in lines:
                with suppress(json.JSONDecodeError):
                    self.events.put((worker, json.loads(line)))
        code = worker.process.wait()
        self.events.put((worker, {"event": "ended", "code": code}))


def _close_stdin(worker: WorkerProcess) -> None:
    with suppress(OSError):
        assert worker.process.stdin is not None
        worker.process.stdin.close()


def _tail(log: Path) -> str:
    with suppress(OSError):
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""
    return ""
