"""Recording a run: every round, the checkpoints and the summary.

The order of writing makes a kill at any moment harmless: the round's line in events.jsonl; at a
checkpoint the client table and matrices, then the checkpoint itself; at the end summary.json.
Resume drops whatever is later than the checkpoint it starts from.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from idiolect.core import files
from idiolect.errors import UserError
from idiolect.runs import checkpoint, seal
from idiolect.runs.config import Config, digest, dump
from idiolect.runs.directory import read_events
from idiolect.runs.environment import describe, fingerprints
from idiolect.runs.export import ModelExport
from idiolect.runs.history import ClientLog, MatrixLog
from idiolect.runs.progress import Progress
from idiolect.simulation import metrics, summary


class Recorder:
    """Writes one run into its directory, and reads it back when the run is resumed."""

    def __init__(self, config: Config, out: Path, sim: Any, progress: Progress) -> None:
        self.config, self.out, self.sim, self.progress = config, out, sim, progress
        self.round = -1  # the last round recorded; 0 is the starting point
        self.events: list[dict[str, Any]] = []
        self.clients = ClientLog(out)
        self.matrices = MatrixLog(out)
        self.saved: int | None = None
        self.exports = ModelExport(out / "models", config["save_models"])

    def open(self, fresh: bool) -> None:
        files.remove_drafts(self.out)
        if fresh:
            seal.write(self.out, self.config)
            files.write_json(self.out / "env.json", describe(self.config, self.sim))
            files.write_text(self.out / "config.yaml", dump(self.config))
            return
        self._check_inputs()
        self._restore()
        self._forget_later_rounds()

    def _restore(self) -> None:
        saved = checkpoint.load(self.out / "checkpoint", self.progress.note)
        if saved is not None:
            self.sim.restore(saved.tensors, saved.meta)
            self.round = self.saved = saved.round

    def _check_inputs(self) -> None:
        with suppress(OSError, json.JSONDecodeError):
            env = json.loads((self.out / "env.json").read_text(encoding="utf-8"))
            for name, digest in fingerprints(self.config, self.sim).items():
                if env.get("inputs", {}).get(name, digest) != digest:
                    what = self.config["data"]["name"] if name == "data" else self.config[name]
                    raise UserError(f"{name}: {what} changed since the run started; put it back")

    def _forget_later_rounds(self) -> None:
        for number in checkpoint.rounds(self.out / "checkpoint"):
            if self.saved is None or number > self.saved:
                checkpoint.remove(self.out / "checkpoint", number)
        self.clients.truncate(self.round)
        self.matrices.truncate(self.round)
        self.events = [event for event in read_events(self.out) if event["round"] <= self.round]
        files.write_text(self.out / "events.jsonl", "".join(map(_line, self.events)))
        known = list(range(self.round + 1))
        if list(self.clients.rounds) != known or [e["round"] for e in self.events] != known:
            raise UserError(
                f"{self.out}: clients.parquet or events.jsonl lost rounds before the checkpoint; "
                "start again with `idiolect run` and another --out"
            )
        scores = {t: self._score(rows) for t, rows in self.clients.rounds.items()}
        self.exports.resume(self.round, scores)

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
        self.exports.round_done(self.sim, done.round, len(rows["client"]), self._score(rows))
        self.round = done.round
        if event["diverged"] and not any(past["diverged"] for past in self.events[:-1]):
            name = self.config["method"]["name"]
            self.progress.note(
                f"warning: {name} diverged in round {done.round} (training loss is not finite); "
                f"lower method.lr (now {self.config['method'].get('lr')})"
            )
        self.progress.update(event)

    def _score(self, rows: Mapping[str, np.ndarray]) -> float | None:
        return metrics.selection(rows, self.config["protocol"])

    def checkpoint(self) -> None:
        if self.saved == self.round:
            return
        self.clients.flush()
        self.matrices.flush()
        tensors, meta = self.sim.state()
        checkpoint.save(self.out / "checkpoint", self.round, tensors, meta)
        self.saved = self.round

    def finish(self) -> None:
        self.clients.flush(whole=True)
        self.matrices.flush(whole=True)
        n_clients = len(self.clients.rounds[self.round]["client"])
        self.exports.finished(self.sim, self.round, n_clients)
        done = summarise(self.config, self.clients.table(), self.events)
        files.write_json(self.out / "summary.json", done)


class Follower(Recorder):
    """A run in a process that is not the first of several: it computes and writes nothing."""

    def open(self, fresh: bool) -> None:
        if not fresh:
            self._restore()

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
    done = summary.summarise(method, config["seed"], config["protocol"], personal, table, events)
    return {**done, "config_hash": digest(config)}


def _line(event: Mapping[str, Any]) -> str:
    return json.dumps(event, allow_nan=False, separators=(",", ":")) + "\n"
