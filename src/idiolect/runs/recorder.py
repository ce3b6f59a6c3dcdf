"""Recording a run: every round, the checkpoints and the summary.

The order of writing makes a kill at any moment harmless: config.yaml after all else that a run
begins with; the round's line in events.jsonl; at a checkpoint the client table and matrices, then
the checkpoint itself; at the end summary.json. A resume reads all of it (`read`, `restore`) before
it changes anything (`cut`: what is later than the checkpoint it starts from is dropped).
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from idiolect.core import files
from idiolect.core.own_code import called
from idiolect.errors import UserError
from idiolect.runs import checkpoint, class_counts, revision, run_files, seal, tracking
from idiolect.runs.config import Config, digest, dump, label
from idiolect.runs.directory import FILES, PARTS, read_events
from idiolect.runs.environment import check_inputs, describe
from idiolect.runs.export import ModelExport
from idiolect.runs.history import ClientLog, MatrixLog
from idiolect.runs.progress import Progress
from idiolect.simulation import early_stop, metrics, summary


class Recorder:
    """Writes one run into its directory, and reads it back when the run is resumed."""

    def __init__(self, config: Config, out: Path, sim: Any, progress: Progress) -> None:
        self.config, self.out, self.sim, self.progress = config, out, sim, progress
        self.round = -1  # the last round recorded; 0 is the starting point
        self.events: list[dict[str, Any]] = []
        self.clients = ClientLog(out)
        self.matrices = MatrixLog(out)
        self.saved: int | None = None
        self.exports = ModelExport(
            out / "models", config["save_models"], adapters="adapt" in config["model"]
        )
        self.checkpoints: list[int] = []  # rounds to go on from, newest first
        self.place = 0  # among the runs that take their rounds together
        self.scores: dict[int, float | None] = {}  # of every round, by which the best is chosen
        self.sinks: tracking.Sinks | None = None
        self.stack: tuple[str, ...] = ()  # digests of the runs that are computed with this one

    def begin(self) -> None:
        """Make the folder of a new run, or the one that a kill left unfinished."""
        self._make_folder()
        self._open_sinks()

    def _make_folder(self) -> None:
        self._remove_drafts()
        seal.write(self.out, self.config)
        files.write_json(self.out / "env.json", describe(self.config, self.sim))
        class_counts.write(self.out, self.sim)
        checkpoint.begin(self.out / "checkpoint")
        seal.write(self.out, self.config)
        files.write_text(self.out / "config.yaml", dump(self.config))

    # --- going on ---

    def read(self) -> None:
        """Read what the run recorded so far."""
        revision.check(self.out, self.config)
        check_inputs(self.out, self.config, self.sim)
        self.events = run_files.plain_events(read_events(self.out), self.out / "events.jsonl")
        with run_files.sound(self.clients.path):
            self.clients.load()
            run_files.plain_table(self.clients.table(), self.clients.path)
        self.matrices.load()
        self.find_checkpoints()
        if not self.checkpoints and (self.events or self.clients.rounds):
            raise self._lost(f"it has {len(self.events)} recorded rounds but no checkpoint")

    def find_checkpoints(self) -> None:
        self.checkpoints = checkpoint.rounds(self.out / "checkpoint")
        for number in self.checkpoints[:1]:
            with suppress(checkpoint.Damaged):  # said when it is to be used
                self.stack = checkpoint.about(self.out / "checkpoint", number).stack

    def restore(self, at: int) -> bool:
        """Go on from the checkpoint of round `at`; False if it is damaged, which is said."""
        folder = self.out / "checkpoint"
        try:
            saved = checkpoint.read(folder, at)
            if saved.weights is not None:
                self.sim.restore(saved.tensors, saved.meta)
        except checkpoint.Damaged as damage:
            before = [number for number in self.checkpoints if 0 <= number < at]
            if not before:
                raise self._lost(f"all its checkpoints are damaged ({damage})") from None
            self.progress.note(
                f"{self.out}: checkpoint of round {at} is damaged ({damage}); trying the one before"
            )
            self.checkpoints.remove(at)
            return False
        if saved.weights is None and self.events:
            self.progress.note(f"{self.out}: stopped before its first checkpoint, begins again")
        self.round, self.stack = saved.round, saved.stack
        self.saved = None if saved.weights is None else saved.round
        self._check_complete()
        return True

    def _check_complete(self) -> None:
        known = list(range(self.round + 1))
        for name, have in (
            ("clients.parquet", list(self.clients.rounds)),
            ("events.jsonl", [event["round"] for event in self.events]),
        ):
            if have[: len(known)] != known:
                raise self._lost(f"{name} lost rounds before the checkpoint of round {self.round}")
        self.exports.check(self.round)

    def _lost(self, what: str) -> UserError:
        return UserError(
            f"{self.out}: {what}; nothing was changed. Put back what is missing and resume again, "
            f"or `idiolect resume {self.out} --from-start` sets all of it aside and begins at round"
            " 0"
        )

    def cut(self) -> None:
        """Forget on disk what is later than the round to go on from."""
        folder = self.out / "checkpoint"
        self._remove_drafts()
        if not self.checkpoints:  # put aside: nothing is left of the run but its config
            self._make_folder()
        checkpoint.tidy(folder, self.round)
        self.clients.truncate(self.round)
        self.matrices.truncate(self.round)
        self.events = [event for event in self.events if event["round"] <= self.round]
        files.write_text(self.out / "events.jsonl", "".join(map(_line, self.events)))
        self.scores = {t: self._score(rows) for t, rows in self.clients.rounds.items()}
        self.exports.resume(self.round, self.scores)
        self._open_sinks()

    def _open_sinks(self) -> None:
        self.sinks = tracking.Sinks(self.out, self.config, self.events, self.progress.note)

    def _remove_drafts(self) -> None:
        files.remove_drafts(self.out, seal.FILE, *FILES, *PARTS)
        files.remove_drafts(self.out / "checkpoint", *checkpoint.FILES)

    def record(self, done: Any) -> None:
        """One round: a line in events.jsonl now, its rows and logs at the next checkpoint."""
        event = summary.as_event(done)
        with open(self.out / "events.jsonl", "a", encoding="utf-8") as file:
            file.write(_line(event))
            file.flush()
            os.fsync(file.fileno())
        self.events.append(event)
        rows = {name: np.asarray(column) for name, column in done.clients.items()}
        self.clients.add(done.round, rows)
        self.matrices.keep(done.round, done.logs, self.config["rounds"])
        self.scores[done.round] = score = self._score(rows)
        self.exports.round_done(self.sim, done.round, len(rows["client"]), score)
        self.round = done.round
        if event["diverged"] and not any(past["diverged"] for past in self.events[:-1]):
            name = called(self.config["method"]["name"])
            self.progress.note(
                f"warning: {name} diverged in round {done.round} (training loss is not finite); "
                f"lower method.lr (now {self.config['method'].get('lr')})"
            )
        if self.sinks is not None:
            self.sinks.round(event)
        self.progress.update(event, self.place)

    @property
    def is_over(self) -> bool:
        """Whether the run is done: by its length, or because it stopped getting better."""
        if self.round >= self.config["rounds"] or getattr(self.sim, "ended", False):
            return True
        after, every = self.config.get("stop_after", 0), self.config.get("eval_every", 1)
        return early_stop.is_over(self.scores, after, every)

    def _score(self, rows: Mapping[str, np.ndarray]) -> float | None:
        return metrics.selection(rows, self.config["protocol"])

    def checkpoint(self) -> None:
        if self.saved == self.round:
            return
        self.clients.flush()
        self.matrices.flush()
        tensors, meta = self.sim.state()
        checkpoint.save(self.out / "checkpoint", self.round, tensors, meta, self.stack)
        self.saved = self.round

    def finish(self) -> None:
        self.clients.flush(whole=True)
        self.matrices.flush(whole=True)
        n_clients = len(self.clients.rounds[self.round]["client"])
        self.exports.finished(self.sim, self.round, n_clients)
        done = summarise(self.config, self.clients.table(), self.events)
        if self.round < self.config["rounds"]:
            done["stopped_early"] = early_stop.told(self.scores, self.config["stop_after"])
            best = done["stopped_early"]["best_round"]
            why = "" if best is None else f", no better on validation samples since round {best}"
            self.progress.note(f"{label(self.config)}: ended after round {self.round}{why}")
        if self.sinks is not None:
            self.sinks.close()
        files.write_json(self.out / "summary.json", done)


class Follower(Recorder):
    """A run in a process that is not the first of several: it computes and writes nothing."""

    def begin(self) -> None: ...

    def read(self) -> None:
        self.find_checkpoints()

    def _check_complete(self) -> None: ...

    def cut(self) -> None: ...

    def record(self, done: Any) -> None:
        self.round = done.round

    def checkpoint(self) -> None:
        self.saved = self.round

    def finish(self) -> None: ...


def summarise(
    config: Config, table: Mapping[str, np.ndarray], events: list[dict[str, Any]]
) -> dict[str, Any]:
    """summary.json, also for a run that is not finished yet."""
    from idiolect.methods import REGISTRY

    method = config["method"]["name"]
    personal = method not in REGISTRY or REGISTRY[method].personal_part != "nothing"
    done = summary.summarise(
        called(method), config["seed"], config["protocol"], personal, table, events
    )
    return {**done, "config_hash": digest(config)}


def _line(event: Mapping[str, Any]) -> str:
    return json.dumps(event, allow_nan=False, separators=(",", ":")) + "\n"
