"""Running what is missing of recipes: jobs to workers, finished runs to the results."""

import math
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from idiolect.errors import UserError
from idiolect.papers import cell_list
from idiolect.papers.planner import CellJob
from idiolect.papers.worker_pool import WorkerPool, WorkerProcess
from idiolect.runs import checkpoint, directory
from idiolect.runs.interruption import stop_requests

TRIES = 2  # of a cell whose process failed for a reason no user can mend


class RecipeProgress:
    """Who is told how the whole goes; the command line has one that shows a line."""

    def show(self, line: str) -> None: ...
    def note(self, line: str) -> None: ...
    def close(self) -> None: ...


@dataclass
class Outcome:
    """What came of the jobs."""

    left: list[CellJob] = field(default_factory=list)  # not started, or stopped and to be continued
    failed: list[tuple[str, str]] = field(default_factory=list)
    interrupted: bool = False
    out_of_time: bool = False

    def add(self, later: "Outcome") -> None:
        """What came of more jobs, too."""
        self.left += later.left
        self.failed += later.failed
        self.interrupted |= later.interrupted
        self.out_of_time |= later.out_of_time


class Runner:
    """Hands jobs out in their order until all are done, time is up, or it is told to stop."""

    def __init__(
        self,
        jobs: Sequence[CellJob],
        processes: int = 1,
        budget: float | None = None,
        progress: RecipeProgress | None = None,
        allow_code: Collection[str] = (),
        first_alone: bool = False,
    ) -> None:
        """`first_alone`: others begin when the first job has done a round. On a GPU it compiles and
        times kernels until then, which the others find in the caches and would only disturb."""
        self.todo = list(jobs)
        self.waiting = first_alone
        self.progress = progress or RecipeProgress()
        self.began = time.monotonic()
        self.deadline = None if budget is None else self.began + budget
        self.budget = budget
        threads = max(1, (os.cpu_count() or 1) // processes) if processes > 1 else None
        self.pool = WorkerPool(processes, threads, allow_code)
        self.total = len({out for job in jobs for out in job.outs})
        self.finished: set[Path] = set()
        self.estimated = sum(job.seconds for job in jobs)
        self.estimated_done = 0.0
        self.stopping = False
        self.outcome = Outcome()

    def run(self) -> Outcome:
        with stop_requests("after the rounds under way") as stop:
            try:
                while True:
                    self._hand_out()
                    if not self.pool.running or stop.is_set() or self._late():
                        break
                    found = self.pool.next_event(0.5)
                    if found is not None:
                        self._told(*found)
                    self.progress.show(self.line())
                self.stopping = True
                self.outcome.interrupted = stop.is_set()
                self.outcome.out_of_time |= self._late()
                self.pool.stop(self._told, at_once=False)
            except KeyboardInterrupt:  # a second Ctrl-C
                self.outcome.interrupted = True
                self.pool.stop(self._told, at_once=True)
            finally:
                self.progress.close()
                self.pool.close()
        self.outcome.left += self.todo
        return self.outcome

    def line(self) -> str:
        """The whole in one line."""
        running = self.pool.running
        share = self._done() / self.estimated if self.estimated else 0.0
        elapsed = time.monotonic() - self.began
        left = clock(elapsed * (1 - share) / share) if share > 0.005 else "?"
        now = ", ".join(f"{w.job.label} {w.round}/{w.rounds}" for w in running if w.job)
        text = f"{len(self.finished)}/{self.total} runs  ETA {left}"
        if self.deadline is not None:
            text += f"  budget left {clock(max(0.0, self.deadline - time.monotonic()))}"
        return f"{text}  {now}"

    def _late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _hand_out(self) -> None:
        while self.todo and self.pool.free and not self._late():
            if self.waiting and self.pool.running:
                return
            job = self._fitting()
            if job is None:
                self.outcome.out_of_time = not self.pool.running
                return
            self.todo.remove(job)
            try:
                _check(job)
            except UserError as error:
                self._failed(job, str(error))
                continue
            self.pool.give(job)

    def _fitting(self) -> CellJob | None:
        """The first job that can be finished in time, as far as that is known."""
        busy = {out for worker in self.pool.running if worker.job for out in worker.job.outs}
        left = math.inf if self.deadline is None else self.deadline - time.monotonic()
        for job in self.todo:
            if busy & set(job.outs):
                continue  # another recipe's job is making the same run
            if not job.measured or job.seconds * self._pace() <= left:
                return job
        return None

    def _pace(self) -> float:
        """Seconds a job takes for each second that was estimated, several running at once."""
        done = self._done()
        if done < 1.0:
            return 1.0
        spent = (time.monotonic() - self.began) * self.pool.size
        return min(10.0, max(0.1, spent / done))

    def _done(self) -> float:
        """Estimated seconds of what is done, jobs under way as far as they are."""
        running = ((w.job, w.share) for w in self.pool.running)
        return self.estimated_done + sum(job.seconds * share for job, share in running if job)

    def _told(self, worker: WorkerProcess, event: dict[str, Any]) -> None:
        job, kind = worker.job, event["event"]
        if kind not in ("ready", "note") and event.get("round") != 0:
            self.waiting = False
        if kind == "note" and job:
            self.progress.note(f"{job.label}: {event['line']}")
        if job is None or kind in ("round", "note", "ready"):
            return
        if kind == "ended" and self.stopping:
            self.outcome.left.append(job)
        elif kind == "ended":  # without a word: it was killed, or broke down
            tail = f" ({event['log']})" if event["log"] else ""
            self._failed(job, f"its process ended with code {event['code']}{tail}", again=True)
        elif kind == "done":
            self._record(job, time.monotonic() - worker.began)
        elif kind == "failed":
            self._failed(job, event["reason"], event["again"])
        elif kind == "stopped":
            self.outcome.left.append(job)
        worker.job = None

    def _record(self, job: CellJob, seconds: float) -> None:
        self.estimated_done += job.seconds
        # Finished runs are not continued, and checkpoints are large. They go before the run is
        # recorded: a recorded run is not looked at again.
        for out in set(job.outs):
            checkpoint.discard(out / "checkpoint")
        try:
            job.results.add(job.cells, job.outs)
            with job.results.locked():
                cell_list.write(job.results)
        except UserError as error:
            self._failed(job, str(error))
            return
        self.finished |= set(job.outs)
        count = f"{len(self.finished)}/{self.total}"
        self.progress.note(f"{job.label}: done in {clock(seconds)}  ({count})")

    def _failed(self, job: CellJob, reason: str, again: bool = False) -> None:
        if again and job.tries + 1 < TRIES:
            # One run of a stack may have failed for all, and a stack may have been too large.
            self.progress.note(f"{job.label}: {reason}; trying again, one run at a time")
            self.todo = [*_apart(job), *self.todo]
            return
        self.estimated_done += job.seconds
        self.progress.note(f"{job.label}: failed: {reason}")
        self.outcome.failed.append((job.label, reason))
        for cell in job.cells:
            job.results.fail(cell, reason)


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _apart(job: CellJob) -> list[CellJob]:
    by_out: dict[Path, list[int]] = {}
    for k, out in enumerate(job.outs):
        by_out.setdefault(out, []).append(k)
    return [
        CellJob(
            job.results,
            [job.cells[k] for k in places],
            [out] * len(places),
            job.seconds / len(by_out),
            job.measured,
            job.tries + 1,
        )
        for out, places in by_out.items()
    ]


def _check(job: CellJob) -> None:
    """Directories that hold something else are found before a process is busy with them."""
    for cell, out in zip(job.cells, job.outs, strict=True):
        directory.state(out, cell.config)
