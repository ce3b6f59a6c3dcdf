"""A process that runs cells: `python -m idiolect.papers.cell_worker`, started by `idiolect recipe`.

Jobs come as lines of JSON on stdin, and what happens goes out as lines of JSON on stdout. When
stdin ends, because the program that started it was stopped or killed, the run under way is saved
after its round and the process ends.
"""

import gc
import json
import os
import queue
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from idiolect.errors import UserError
from idiolect.runs import revision
from idiolect.runs.build import build as from_config
from idiolect.runs.execute import Saving, execute_together
from idiolect.runs.interruption import Interrupted
from idiolect.runs.progress import Progress

SAVING = Saving(seconds=30.0, at_end=False)  # the state of a large stack takes seconds to write
FULL = "the GPU's memory is full; use fewer --jobs"


class Told(Progress):
    """Tells the program that started this one how far a job is."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.total = 1

    def tell(self, event: str, **what: Any) -> None:
        with suppress(
            BrokenPipeError
        ):  # nobody listens any more: stdin ends too, and that is heard
            self.out.write(json.dumps({"event": event, **what}) + "\n")
            self.out.flush()

    def start(
        self, label: str, done: int, total: int, sent: int = 0, members: Sequence[str] = ()
    ) -> None:
        self.total = total
        self.tell("round", round=done, rounds=total)

    def update(self, event: Mapping[str, Any], member: int = 0) -> None:
        if member == 0:
            self.tell("round", round=event["round"], rounds=self.total)

    def note(self, line: str) -> None:
        self.tell("note", line=line)


class Jobs:
    """The jobs on stdin, and what to do when there will be no more."""

    def __init__(self) -> None:
        self.waiting: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.busy = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self.waiting.put(json.loads(line))
        self.waiting.put(None)
        if self.busy:
            os.kill(os.getpid(), signal.SIGTERM)  # a run under way ends after its round, saved


def main() -> None:
    # Whatever a library prints must not come between the lines of JSON.
    told = Told(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    warnings.showwarning = lambda message, *where: told.note(str(message))
    jobs = Jobs()
    told.tell("ready")
    while (job := jobs.waiting.get()) is not None:
        jobs.busy = True
        if not _run(job, told):
            return
        jobs.busy = False


def _run(job: dict[str, Any], told: Told) -> bool:
    """One job; False where this process should end."""
    configs, outs = [run["config"] for run in job["runs"]], [Path(r["out"]) for r in job["runs"]]
    try:
        build = partial(from_config, allow_code=job["allow_code"])
        again = revision.earlier(configs, outs)
        execute_together(configs, outs, True, told, build, again, SAVING)
    except Interrupted as stopped:
        told.tell("stopped", reason=str(stopped), ends=True)
        return False
    except UserError as error:
        told.tell("failed", reason=str(error), again=False)
        return True
    except Exception as error:
        traceback.print_exc()
        full = type(error).__name__ == "OutOfMemoryError"
        reason = FULL if full else f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        told.tell("failed", reason=reason, again=True, ends=True)
        return False
    _free_memory()
    told.tell("done")
    return True


def _free_memory() -> None:
    """What this job held on the GPU is there for the other processes."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
