"""A run is a directory: everything reports, the live page and resume need, and nothing else.

Order of writing, which is what makes a kill at any moment harmless: the round's line in
events.jsonl; at a checkpoint the client table and matrices, then the checkpoint itself; at the end
summary.json. Resume drops whatever is later than the checkpoint it starts from.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from idiolect.core import files
from idiolect.engine.ranks import Ranks
from idiolect.errors import UserError
from idiolect.runs import checkpoint
from idiolect.runs import config as settings
from idiolect.runs.environment import describe, fingerprints, same_threads
from idiolect.runs.export import ModelExport
from idiolect.runs.guard import (
    Interrupted,
    Stop,
    check_writable,
    disk_errors,
    locked,
    stop_requests,
)
from idiolect.runs.history import ClientLog, MatrixLog
from idiolect.simulation import metrics

Config = dict[str, Any]
Builder = Callable[[Config], Any]

NAMES = ("config.yaml", "env.json", "events.jsonl", "clients.parquet", "matrices.safetensors",
         "checkpoint", "models", "summary.json")  # fmt: skip


class Progress(Protocol):
    """Who wants to hear how the run goes (see progress.py)."""

    def start(self, label: str, done: int, total: int, sent: int = 0) -> None: ...
    def update(self, event: Mapping[str, Any]) -> None: ...
    def note(self, line: str) -> None: ...
    def close(self) -> None: ...


class Quiet:
    """Nobody watches; warnings still go to stderr."""

    def start(self, label: str, done: int, total: int, sent: int = 0) -> None: ...
    def update(self, event: Mapping[str, Any]) -> None: ...
    def note(self, line: str) -> None:
        print(line, file=sys.stderr)

    def close(self) -> None: ...


def execute(
    config: Config,
    out: Path | str,
    resume: bool = False,
    progress: Progress | None = None,
    build: Builder | None = None,
) -> dict[str, Any]:
    """Run a resolved config into `out`, or continue there; returns the summary."""
    return execute_together([config], [out], resume, progress, build)[0]


def execute_together(
    configs: Sequence[Config],
    outs: Sequence[Path | str],
    resume: bool = False,
    progress: Progress | None = None,
    build: Builder | None = None,
) -> list[dict[str, Any]]:
    """Seeds and settings of one method, each into its own directory, in one stack where they can
    be."""
    if build is None:
        from idiolect.runs.build import build as from_config

        build = from_config
    progress, ranks = progress or Quiet(), Ranks.current()
    todo: list[tuple[Config, Path]] = []
    for config, folder in zip(configs, map(Path, outs), strict=True):
        found = ranks.agree(standing, folder, config)
        if found == "finished" and resume:
            continue
        _refuse(folder, found, resume)
        if ranks.first:
            check_writable(folder)
        if found == "unfinished":
            same_threads(folder / "env.json")
        todo.append((config, folder))
    if todo:
        _run([(config, folder, build(config)) for config, folder in todo], resume, progress)
    return [ranks.agree(_summary_of, Path(folder)) for folder in outs]


def _run(todo: Sequence[tuple[Config, Path, Any]], resume: bool, progress: Progress) -> None:
    ranks = Ranks.current()
    with ExitStack() as guards:
        for _, out, _ in todo if ranks.first else ():
            guards.enter_context(disk_errors(out))
            guards.enter_context(locked(out))
        stop = guards.enter_context(stop_requests())
        recorders: list[_Recorder] = []
        for config, out, sim in todo:
            # Another process may have come first while the data was loading.
            found = ranks.agree(standing, out, config)
            _refuse(out, found, resume)
            kind = _Recorder if ranks.first else _Follower
            run = kind(config, out, sim, progress if not recorders else Quiet())
            run.open(fresh=found == "new")
            if ranks.agree(lambda run: run.saved, run) != run.saved:
                raise UserError(f"{out}: its checkpoint is not what the first process reads there")
            recorders.append(run)
        for group in _stacks(recorders):
            lead = group[0]
            lead.progress = progress
            sent = sum(event["bytes_up"] + event["bytes_down"] for event in lead.events)
            label = settings.label(*(run.config for run in group))
            progress.start(label, max(lead.round, 0), lead.config["rounds"], sent)
            try:
                _rounds(group, stop)
            except KeyboardInterrupt:
                raise Interrupted(
                    f"stopped at once; `idiolect resume {lead.out}` continues after round "
                    f"{lead.saved or 0}"
                ) from None
            finally:
                progress.close()


def _stacks(recorders: "list[_Recorder]") -> "list[list[_Recorder]]":
    """Runs that take their rounds together, as far as they can."""
    if len(recorders) == 1:
        return [recorders]
    from idiolect.simulation.side_by_side import Sweep

    stacks: dict[Any, list[_Recorder]] = {}
    for run in recorders:
        stacks.setdefault((run.round, Sweep.kind(run.sim)), []).append(run)
    return list(stacks.values())


def _summary_of(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "summary.json").read_text(encoding="utf-8")))


def standing(out: Path, config: Config | None) -> Literal["new", "unfinished", "finished"]:
    """What `out` holds; UserError where it is something other than this run."""
    if not out.exists():
        return "new"
    if not out.is_dir():
        raise UserError(f"{out} is a file; choose another --out")
    if not (out / "config.yaml").exists():
        alien = [name for name in NAMES if (out / name).exists()]
        if alien:
            raise UserError(f"{out} holds {alien[0]} but no config.yaml; choose another --out")
        return "new"
    if config is not None and settings.digest(read_config(out)) != settings.digest(config):
        raise UserError(f"{out} holds another run (its config.yaml differs); choose another --out")
    return "finished" if (out / "summary.json").exists() else "unfinished"


def read_config(out: Path) -> Config:
    if not (out / "config.yaml").is_file():
        raise UserError(f"{out} is not a run: it has no config.yaml")
    return settings.read_yaml(out / "config.yaml")


def read_events(out: Path) -> list[dict[str, Any]]:
    """The rounds so far; a line cut short by a kill does not count."""
    events = []
    with suppress(FileNotFoundError):
        for line in (out / "events.jsonl").read_text(encoding="utf-8").splitlines():
            try:
                events.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return events


def _rounds(group: "list[_Recorder]", stop: Stop) -> None:
    lead, ranks = group[0], Ranks.current()
    total, every = lead.config["rounds"], lead.config["checkpoint_every"]
    start, step = _steppers(group)
    if lead.round < 0:
        for run, done in zip(group, start(), strict=True):
            run.record(done)
    while lead.round < total:
        if ranks.any(stop.asked):
            for run in group:
                run.checkpoint()
            ranks.any(True)  # torchrun ends the others when one leaves: not before all is saved
            raise Interrupted(
                f"stopped after round {lead.round} of {total}; "
                f"continue with: idiolect resume {lead.out}"
            )
        for run, done in zip(group, step(), strict=True):
            run.record(done)
        if lead.round % every == 0 or lead.round == total:
            for run in group:
                run.checkpoint()
    for run in group:
        run.finish()


def _steppers(group: "list[_Recorder]") -> tuple[Callable[[], list[Any]], ...]:
    """Round 0, and one round, of every run in the group."""
    if len(group) == 1:
        sim = group[0].sim
        return lambda: [sim.start()], lambda: [sim.step()]
    from idiolect.simulation.side_by_side import Sweep

    sweep = Sweep([run.sim for run in group])
    return sweep.start, sweep.step


class _Recorder:
    """Everything one process writes into a run directory."""

    def __init__(self, config: Config, out: Path, sim: Any, progress: Progress) -> None:
        self.config, self.out, self.sim, self.progress = config, out, sim, progress
        self.round = -1  # the last round recorded; 0 is the starting point
        self.events: list[dict[str, Any]] = []
        self.clients = ClientLog(out)
        self.matrices = MatrixLog(out)
        self.saved: int | None = None
        self.exports = ModelExport(out / "models", config["save_models"])

    def open(self, fresh: bool) -> None:
        files.sweep(self.out)
        if fresh:
            files.write_json(self.out / "env.json", describe(self.config, self.sim))
            files.write_text(self.out / "config.yaml", settings.dump(self.config))
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
            for name, digest in fingerprints(self.config).items():
                if env.get("inputs", {}).get(name, digest) != digest:
                    raise UserError(f"{name}: {self.config[name]} changed since the run started")

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
        event = as_event(done)
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
        summary = summarise(self.config, self.clients.table(), self.events)
        files.write_json(self.out / "summary.json", summary)


class _Follower(_Recorder):
    """A run on a rank that is not the first: it takes part and writes nothing."""

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
    method = config["method"]["name"]
    seconds = sum(event["seconds"] for event in events)
    training = seconds - sum(event["seconds_eval"] for event in events)
    samples = sum(event["samples"] for event in events)
    return {
        "method": method,
        "rounds": max((event["round"] for event in events), default=0),
        "seed": config["seed"],
        **metrics.summarise(table, config["protocol"], settings.has_personal_model(method)),
        "bytes_up": sum(event["bytes_up"] for event in events),
        "bytes_down": sum(event["bytes_down"] for event in events),
        "seconds": seconds,
        "seconds_eval": seconds - training,
        "samples": samples,
        "samples_per_second": samples / training if training > 0 else None,
        "diverged": any(event["diverged"] for event in events),
        "config_hash": settings.digest(config),
    }


def as_event(done: Any) -> dict[str, Any]:
    """One round as a line of events.jsonl."""
    loss = float(done.train_loss)
    event = {
        "round": done.round,
        "time": time.time(),
        "accuracy": metrics.round_stats(done.clients, "before"),
        "accuracy_after": metrics.round_stats(done.clients, "after"),
        "accuracy_global": metrics.round_stats(done.clients, "global"),
        "train_loss": loss if math.isfinite(loss) else None,
        "diverged": bool(done.started) and done.round > 0 and not math.isfinite(loss),
        "seconds": done.seconds,
        "seconds_eval": done.seconds_eval,
        "samples": done.samples,
        "bytes_up": done.bytes_up,
        "bytes_down": done.bytes_down,
        "started": done.started,
        "arrived": done.arrived,
        "staleness": done.staleness,
    }
    return dict(json.loads(json.dumps(event, default=lambda value: value.item())))


def _line(event: Mapping[str, Any]) -> str:
    return json.dumps(event, allow_nan=False, separators=(",", ":")) + "\n"


def _refuse(out: Path, found: str, resume: bool) -> None:
    if found == "finished":
        raise UserError(
            f"{out} already holds this run, finished; see `idiolect report {out}` or choose "
            "another --out"
        )
    if found == "unfinished" and not resume:
        raise UserError(f"{out} holds this run, unfinished; continue with `idiolect resume {out}`")
