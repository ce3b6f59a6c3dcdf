"""Run directories as reports see them, finished or not."""

import json
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from idiolect.core import shown
from idiolect.core.own_code import called
from idiolect.core.text import shortened
from idiolect.errors import UserError
from idiolect.report.unlike import unlike
from idiolect.runs import class_counts, run_files
from idiolect.runs.directory import read_config, read_events
from idiolect.runs.history import ClientLog, MatrixLog
from idiolect.runs.recorder import summarise
from idiolect.simulation import metrics

LARGEST_JOURNAL = 16 << 20  # bytes


@dataclass(frozen=True)
class Run:
    """One run directory, read whole."""

    path: Path
    config: dict[str, Any]
    env: dict[str, Any]
    events: list[dict[str, Any]]
    table: dict[str, np.ndarray]
    summary: dict[str, Any]
    finished: bool

    def __repr__(self) -> str:
        """One line; the table has a row per client and round."""
        metric = metrics.metric_of(self.table)
        told = f"{metric.name} {shown.score(self.summary, metric.share)}"
        rounds = f"{self.summary['rounds']} rounds" + ("" if self.finished else ", unfinished")
        return f"Run({str(self.path)!r}, {self.method}, {rounds}, {told})"

    def _repr_html_(self) -> str:
        share = metrics.metric_of(self.table).share
        return shown.result_table(self.summary, share, self.summary["rounds"])

    def frame(self) -> Any:
        """clients.parquet as a pandas DataFrame: a row per client and round."""
        return shown.frame(self.table)

    @property
    def method(self) -> str:
        return called(str(self.config["method"]["name"]))

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @cached_property
    def names(self) -> dict[int, str]:
        """What clients are called: by their data, or as sites of a real federation."""
        numbers = self.table.get("client", np.empty(0, np.int32)).tolist()
        told_by_data = self.table.get("name", np.empty(0, str)).tolist()
        found = {k: shortened(name, 60) for k, name in zip(numbers, told_by_data, strict=False)}
        try:
            with (self.path / "flower" / "journal.jsonl").open("rb") as file:
                lines = file.read(LARGEST_JOURNAL).splitlines()
        except OSError:
            return found
        for line in lines:
            with suppress(ValueError, RecursionError):
                about = json.loads(line)
                told = about.get("name") if isinstance(about, dict) else None
                if isinstance(told, str) and isinstance(about.get("client"), int):
                    found[about["client"]] = shortened(told, 60)
        return found

    @cached_property
    def class_counts(self) -> dict[str, Any] | None:
        """Training samples of every client and class, where the run recorded them."""
        return class_counts.read(self.path)

    @cached_property
    def matrices(self) -> dict[str, dict[int, torch.Tensor]]:
        """What the method logged: name -> round -> tensor."""
        log = MatrixLog(self.path)
        with run_files.sound(log.path):
            log.load()
        found: dict[str, dict[int, torch.Tensor]] = {}
        for number, logs in log.rounds.items():
            for name, value in logs.items():
                found.setdefault(name, {})[number] = value
        return found


def load(path: Path | str) -> Run:
    """Read a run; one without summary.json is summarised as far as it got."""
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path} does not exist; runs are directories that `idiolect run` wrote")
    if not path.is_dir():
        raise UserError(f"{path} is a file; runs are directories that `idiolect run` wrote")
    config = run_files.plain_config(read_config(path), path / "config.yaml")
    with run_files.sound(path / "events.jsonl"):
        events = run_files.plain_events(read_events(path), path / "events.jsonl")
    with run_files.sound(path / "clients.parquet"):
        log = ClientLog(path)
        log.load()
        table = run_files.plain_table(log.table(), path / "clients.parquet")
    finished = (path / "summary.json").exists()
    summary = run_files.read_json(path / "summary.json")
    if finished:
        summary = run_files.checked_summary(summary, len(events), table, path / "summary.json")
    else:
        summary = summarise(config, table, events)
    env = run_files.read_json(path / "env.json")
    return Run(path, config, env, events, table, summary, finished)


def find(paths: Sequence[Path]) -> list[Run]:
    """Runs at these paths; a folder of runs stands for the runs in it."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir() and not (path / "config.yaml").exists():
            inside = sorted(file.parent for file in path.glob("*/config.yaml"))
            if not inside:
                raise UserError(f"{path} holds no run (no config.yaml in it or one level below)")
            found += inside
        else:
            found.append(path)
    seen: dict[Path, Path] = {}
    for path in found:
        place = path.resolve()
        if first := seen.get(place):
            warnings.warn(f"{path} is the same run as {first}: it is counted once", stacklevel=2)
        seen.setdefault(place, path)
    runs = [load(path) for path in seen.values()]
    for line in unlike(runs):
        warnings.warn(line, stacklevel=2)
    return runs
