"""Runs that differ only in their seed, under one label and in one colour."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from idiolect.core.fields import flat
from idiolect.core.task import Metric
from idiolect.core.text import one_line
from idiolect.report.load import Run
from idiolect.runs import config as settings
from idiolect.simulation import metrics

COLOURS = 7  # that people can tell apart
LOCAL, FADED = COLOURS, COLOURS + 1  # greys
# Settings that say how a run is computed, kept and shown, not what it learns
INCIDENTAL = (
    "engine", "device", "keep", "log", "measure", "protocol", "save_models", "checkpoint_every",
    "eval_every",
)  # fmt: skip
LABELLED = 3  # settings written out in a row's label


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ only in their seed."""

    label: str
    runs: list[Run]
    colour: int = 0  # of the page's palette; LOCAL and FADED are greys
    dash: int = 0  # tells lines of one colour apart

    @property
    def method(self) -> str:
        return self.runs[0].method

    @cached_property
    def accuracy(self) -> float | None:
        """Mean over clients in the last round, mean over seeds: of the task's metric."""
        return mean_of_known([run.summary["accuracy"]["last"]["mean"] for run in self.runs])

    @cached_property
    def metric(self) -> Metric:
        return metrics.metric_of(self.runs[0].table)

    @property
    def diverged(self) -> bool:
        return any(run.summary["diverged"] for run in self.runs)

    @property
    def goodness(self) -> float:
        """By which groups are ranked, the larger the better."""
        return -np.inf if self.accuracy is None else self.metric.sign * self.accuracy

    @property
    def scale(self) -> int:
        """Times a score: percent where the metric is a share."""
        return 100 if self.metric.share else 1

    def difference(self, value: float) -> str:
        """A difference of scores (already in percent where they are shares), with its unit."""
        return f"{value:.1f} points" if self.metric.share else f"{value:.3g} {self.metric.name}"

    def gains(
        self, found: Sequence[Run], over: str = "local"
    ) -> Iterator[tuple[Run, Run, dict[str, Any]]]:
        """Each run, the run of `over` on the same clients, and what the clients win over it."""
        for run in self.runs:
            other = reference(run, found, over)
            gain = metrics.gain(run.table, other.table) if other else None
            if other and gain:
                yield run, other, gain


def groups(found: Sequence[Run]) -> list[Group]:
    """Runs by setting, local first; a method with several settings is called by what differs."""
    by_setting: dict[str, list[Run]] = {}
    for run in found:
        by_setting.setdefault(settings.digest({**run.config, "seed": 0}), []).append(run)
    sets = sorted(by_setting.values(), key=lambda members: members[0].method != "local")
    made = [
        Group(_label(m[0], [o[0] for o in sets]), sorted(m, key=lambda run: run.seed)) for m in sets
    ]
    return _coloured(made)


def _coloured(made: Sequence[Group]) -> list[Group]:
    """A colour each for as many methods as people can tell apart, the best ones; the others are
    thin grey lines. `local` has a grey of its own, with another dash for each of its settings."""
    others = [n for n, group in enumerate(made) if group.method != "local"]
    alone = [n for n, group in enumerate(made) if group.method == "local"]
    best = sorted(others, key=lambda n: -made[n].goodness)[:COLOURS]
    shown = [n for n in others if n in best]
    return [
        replace(group, colour=LOCAL, dash=alone.index(n))
        if n in alone
        else replace(group, colour=shown.index(n) if n in shown else FADED)
        for n, group in enumerate(made)
    ]


def _label(run: Run, others: Sequence[Run]) -> str:
    """`fedprox mu=0.1`; the folder's name where settings differ in too much to be written out."""
    alike = [one for one in others if one.method == run.method]
    varied = settings.differences([one.config for one in alike])
    if len(varied) > LABELLED:
        return one_line(f"{run.method} ({run.path.name})")
    at = alike.index(run)
    values = [f"{key.removeprefix('method.')}={v[at]}" for key, v in varied.items()]
    return one_line(" ".join([run.method, *values]))


def reference(run: Run, found: Sequence[Run], method: str = "local") -> Run | None:
    """The run of that method on the same clients: same data, split and seed. Of several, one with
    as many rounds, if there is one; among those the one that has most settings outside the method
    in common with this run (model, participation …), then most settings of the method."""
    if run.method == method:
        return None
    mine = _shaping(run)

    def differing(other: Run) -> tuple[bool, int, int]:
        theirs = _shaping(other)
        keys = {key for key in {*mine, *theirs} if mine.get(key) != theirs.get(key)}
        of_method = sum(key.startswith("method.") for key in keys)
        return "rounds" in keys, len(keys) - of_method, of_method

    def same_clients(other: Run) -> bool:
        return all(other.config[key] == run.config[key] for key in ("data", "split", "seed"))

    others = [other for other in found if other.method == method]
    return min(filter(same_clients, others), key=differing, default=None)


def _shaping(run: Run) -> dict[str, Any]:
    """The settings that decide what a run learns, by their path."""
    return flat({key: v for key, v in run.config.items() if key not in INCIDENTAL})


def mean_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def mean_by_round(run: Run, column: str, unseen: bool) -> dict[int, float]:
    """The mean of a column of the client table in every round, over clients that take part, or over
    unseen ones."""
    table = run.table
    if column not in table:
        return {}
    keep = np.isfinite(table[column]) & (table["unseen"] == unseen)
    rounds = table["round"][keep]
    counts = np.bincount(rounds)
    sums = np.bincount(rounds, weights=table[column][keep])
    return {int(n): float(sums[n] / counts[n]) for n in np.flatnonzero(counts)}
