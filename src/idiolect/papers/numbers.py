"""What a run shows: named numbers for the cells of a table, and series over rounds for figures.

A number is NAME or NAME:PART. NAME is one of `NAMED`, a path into summary.json such as
`accuracy.last.worst`, or a series. PART is a round (`fisher_trace:5`; `protocol:10`: as known
after ten rounds), a moment (`:last`, `:first`, `:best`, `:min`, `:mean`), or an item of the series,
averaged over rounds (`gradient_similarity:head`). A series alone is that of its last round.

A series is a path into a line of events.jsonl (`train_loss`, `accuracy_after.mean`), a column of
clients.parquet (an item per client; `clients.fisher_trace` where events.jsonl has the mean under
the same name), or something the method logged (matrices.safetensors).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from idiolect.errors import UserError
from idiolect.runs.config import Config
from idiolect.runs.directory import read_config, read_events, read_summary
from idiolect.runs.history import ClientLog, MatrixLog
from idiolect.simulation import metrics

NAMED = {
    "protocol": "protocol.value",
    "server_accuracy": "accuracy_global.last.pooled",
    "personal": "accuracy.last.mean",
    "trained": "accuracy_after.last.mean",
    "worst": "accuracy.last.worst",
    "unseen": "unseen.last.mean",
    "unseen_after": "unseen_after.last.mean",
    "clients": "clients",
}
SERIES = {
    "accuracy": "accuracy.mean",
    "test_accuracy": "accuracy.mean",
    "accuracy_after": "accuracy_after.mean",
    "accuracy_global": "accuracy_global.pooled",
}
SHARES = ("protocol", "validation", "unseen", "unseen_after")  # accuracies by another name
MISSING = object()


@dataclass(frozen=True)
class Moment:
    """One value of a series; `item` is a client, a layer or a place in a matrix ("" : only one)."""

    round: int
    item: str
    value: float


@dataclass(frozen=True)
class FinishedRun:
    """A finished run directory, read as far as it is needed."""

    out: Path

    @cached_property
    def config(self) -> Config:
        return read_config(self.out)

    @cached_property
    def summary(self) -> dict[str, Any]:
        return read_summary(self.out)

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        return read_events(self.out)

    @cached_property
    def table(self) -> dict[str, np.ndarray]:
        log = ClientLog(self.out)
        log.load()
        return log.table()

    @cached_property
    def logs(self) -> dict[int, dict[str, Any]]:
        log = MatrixLog(self.out)
        log.load()
        return log.rounds

    @cached_property
    def replaced(self) -> dict[str, np.ndarray]:
        """What its exported models lose with their most informed parameters, or any, replaced."""
        from idiolect.runs.replaced_parameters import replacement_of_run

        return replacement_of_run(self.out)

    def series(self, name: str) -> list[Moment]:
        """A series over rounds."""
        path, scale = SERIES.get(name, name).split("."), 100 if is_fraction(name) else 1
        column = name.removeprefix("clients.")
        if column != name and column in self.table:
            return _of_clients(self, column, scale)
        for where in (path, ["measured", *path]):
            found = [(event["round"], _walk(event, where)) for event in self.events]
            if any(value is not MISSING for _, value in found):
                kept = [(t, value) for t, value in found if value is not MISSING]
                return [m for t, value in kept for m in _moments(t, value, scale)]
        if name in self.table:
            return _of_clients(self, name, scale)
        logged = [(t, kept[name]) for t, kept in self.logs.items() if name in kept]
        if logged:
            return [m for t, value in logged for m in _moments(t, value.tolist(), 1)]
        known = sorted({key for kept in self.logs.values() for key in kept})
        raise UserError(
            f"'{name}' is no number or series of this run: it is not in summary.json, "
            "events.jsonl, clients.parquet or what the method logged "
            f"({', '.join(known) or 'nothing'})"
        )


@dataclass(frozen=True)
class StoredRun:
    """What a record and its file of series keep of a run."""

    config: Config
    summary: dict[str, Any]
    kept: Mapping[str, list[Moment]]

    def series(self, name: str) -> list[Moment]:
        return self.kept.get(name, [])


Run = FinishedRun | StoredRun


def number(run: FinishedRun, metric: str) -> float | None:
    """A named number of a run, in percent where it is an accuracy; None if nothing was measured."""
    from idiolect.papers.special_numbers import SPECIAL

    name, _, part = metric.partition(":")
    if name in SPECIAL:
        return _finite(SPECIAL[name](run, part))
    if not part and (found := from_summary(run.summary, metric)) is not MISSING:
        return found
    return _at(run.series(name), metric, part)


def number_of_series(run: StoredRun, metric: str) -> Any:
    """The same as far as the series that were kept tell it; MISSING if they do not."""
    from idiolect.papers.special_numbers import FROM_SERIES, SPECIAL

    name, _, part = metric.partition(":")
    if name in FROM_SERIES:
        found = FROM_SERIES[name](run, part)
    elif name in SPECIAL or any("," in one.item for one in run.series(name)):
        return MISSING  # of a matrix a few rounds are kept
    else:
        found = _at(run.series(name), metric, part)
    return MISSING if found is None else found


def from_summary(summary: Mapping[str, Any], name: str) -> Any:
    """A number that the summary holds; MISSING if it does not."""
    path = NAMED.get(name, name)
    found = _walk(summary, path.split("."))
    if found is MISSING and name in (summary.get("measured") or {}):
        found = summary["measured"][name]
    if isinstance(found, Mapping | list | str):
        return MISSING
    if found is MISSING or found is None:
        return found
    return _finite(float(found) * (100 if is_fraction(path) else 1))


def _of_clients(run: FinishedRun, column: str, scale: float) -> list[Moment]:
    columns = (run.table["round"], run.table["client"], run.table[column])
    rows = zip(*(one.tolist() for one in columns), strict=True)
    return [Moment(t, str(k), scale * float(v)) for t, k, v in rows if math.isfinite(v)]


def protocol_value(run: FinishedRun, until: int | None = None) -> dict[str, Any]:
    """The protocol's number, also as it was after `until` rounds."""
    rounds = metrics.rounds_of(run.table)
    if until is not None:
        rounds = {t: rows for t, rows in rounds.items() if t <= until}
    return metrics.protocol_value(rounds, run.config["protocol"], has_personal_model(run))


def has_personal_model(run: FinishedRun) -> bool:
    """Whether clients hold a model of their own besides the locally trained one."""
    from idiolect.methods import REGISTRY

    method = run.config["method"]["name"]
    return method not in REGISTRY or REGISTRY[method].personal_part != "nothing"


def is_fraction(name: str) -> bool:
    """Whether it is shown in percent; `accuracy.best.round` is none."""
    path = name.split(".")
    return path[-1] != "round" and ("accuracy" in name or path[0] in SHARES)


def unit(metric: str) -> str:
    """What a number is counted in, for headings and axes."""
    name = metric.partition(":")[0]
    units = {"bytes_per_client_round": "MiB", "flops_per_round": "FLOPs", "seconds": "s"}
    fraction = is_fraction(NAMED.get(name, name)) or name == "delivered_unless_trained"
    return "%" if fraction else units.get(name, "points" if name.endswith("_drop") else "")


def _walk(found: Any, path: Sequence[str]) -> Any:
    for key in path:
        if found is None:
            return None
        if not isinstance(found, Mapping) or key not in found:
            return MISSING
        found = found[key]
    return found


def _moments(t: int, value: Any, scale: float, item: str = "") -> list[Moment]:
    if isinstance(value, list):
        value = {str(k): one for k, one in enumerate(value)}
    if isinstance(value, Mapping):
        parts = ((f"{item},{k}" if item else k, one) for k, one in value.items())
        return [m for name, one in parts for m in _moments(t, one, scale, name)]
    if value is None or not math.isfinite(float(value)):
        return []
    return [Moment(t, item, scale * float(value))]


def _at(moments: Sequence[Moment], metric: str, part: str) -> float | None:
    items = {one.item for one in moments}
    if part and part in items and not part.isdigit():
        return _mean([one.value for one in moments if one.item == part])
    by_round: dict[int, list[float]] = {}
    for one in moments:
        by_round.setdefault(one.round, []).append(one.value)
    values = {t: float(np.mean(v)) for t, v in by_round.items()}
    if part.isdigit():
        return values.get(int(part))
    chosen: dict[str, Callable[[], float]] = {
        "": lambda: values[max(values)],
        "last": lambda: values[max(values)],
        "first": lambda: values[min(values)],
        "best": lambda: max(values.values()),
        "min": lambda: min(values.values()),
        "mean": lambda: float(np.mean(list(values.values()))),
    }
    if part not in chosen:
        known = ", ".join([*filter(None, chosen), "a round", *sorted(items - {""})[:8]])
        raise UserError(f"metric {metric}: after the colon use {known}")
    return _finite(chosen[part]()) if values else None


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
