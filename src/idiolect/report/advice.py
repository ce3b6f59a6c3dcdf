"""Which method to take, who gains, who is harmed, at what cost and how sure that is: from the runs
of a tournament, on validation samples only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from idiolect.errors import UserError
from idiolect.report.load import Run
from idiolect.report.run_groups import Group, groups, mean_of_known
from idiolect.report.significance import (
    FEWEST_PAIRS,
    SURE,
    TEST,
    AgainstBest,
    best_group,
    comparisons,
)
from idiolect.report.tables import Row, rows
from idiolect.report.validation_view import on_validation

ALIKE = 0.5  # points of a share (percent of the best value of another metric): no matter in use


@dataclass(frozen=True)
class Cost:
    """Of one round: all clients together."""

    megabytes: float
    seconds: float
    steps: float

    @property
    def order(self) -> tuple[float, float]:
        """By which methods are cheaper. Seconds depend on what else the machine does."""
        return (round(self.megabytes, 9), self.steps)


class Advice:
    """The choice among the methods of a tournament. Of methods that cannot be told apart from the
    best and are less than half a point behind it, the cheapest is taken."""

    def __init__(self, found: Sequence[Run]):
        self.views = [on_validation(run) for run in found]
        self.groups = groups(self.views)
        best = best_group(self.groups)
        if best is None or best.accuracy is None:
            raise UserError("no method has a score on validation samples; lower method.lr")
        if best.diverged:
            raise UserError(
                "every method diverged; lower method.lr, or bring inputs and targets near 1"
            )
        self.best, self.value = best, best.accuracy
        self.against = comparisons(self.groups)
        self.chosen = min([best, *self.alike], key=lambda one: self.cost(one).order)

    @cached_property
    def alike(self) -> list[Group]:
        """Not distinguishable from the best by the test, and near it."""
        near = ALIKE if self.best.metric.share else ALIKE / 100 * abs(self.value)
        return [g for g in self.groups if self._may_be_chance(g) and self._behind(g) <= near]

    @cached_property
    def perhaps(self) -> list[Group]:
        """Further behind the best, which may be chance."""
        return [g for g in self.groups if self._may_be_chance(g) and g not in self.alike]

    def _may_be_chance(self, group: Group) -> bool:
        about = self.against.get(group.label)
        return about is not None and about.p is not None and not about.is_worse

    def _behind(self, group: Group) -> float:
        return self.against[group.label].behind

    def cost(self, group: Group) -> Cost:
        def per_round(key: str) -> float:
            each = [(run.summary.get(key), max(1, run.summary["rounds"])) for run in group.runs]
            return mean_of_known([v / n for v, n in each if v is not None]) or 0.0

        sent = per_round("bytes_up") + per_round("bytes_down")
        return Cost(sent / 1e6, per_round("seconds"), per_round("steps"))

    def group(self, method: str) -> Group | None:
        return next((one for one in self.groups if one.method == method), None)

    @cached_property
    def gains(self) -> dict[str, float]:
        """What every client wins over training alone, by name, the least first. Clients without
        names are others with another seed, unless there is one."""
        found: dict[str, list[float]] = {}
        several = len(self.chosen.runs) > 1
        for run, _, gain in self.chosen.gains(self.views):
            named = "name" in run.table
            for client, value in zip(gain["clients"], gain["per_client"], strict=True):
                number = f"client {client}" + (f" of seed {run.seed}" if several else "")
                name = run.names[client] if named else number
                found.setdefault(name, []).append(value)
        means = {name: float(np.mean(values)) for name, values in found.items()}
        return dict(sorted(means.items(), key=lambda item: item[1]))

    @property
    def harmed(self) -> list[str]:
        return [name for name, value in self.gains.items() if value < -1e-9]

    @property
    def gaining(self) -> list[str]:
        return [name for name, value in reversed(self.gains.items()) if value > 1e-9]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; scores are those on validation samples."""
        return {
            "method": self.chosen.label,
            "best_on_validation": self.best.label,
            "cannot_be_told_apart": [one.label for one in self.alike],
            "perhaps_as_good": [one.label for one in self.perhaps],
            "test": {"name": TEST, "level": SURE, "needs_pairs": FEWEST_PAIRS},
            "against_best": {label: _plain(one) for label, one in self.against.items()},
            "gains": self.gains,
            "harmed": self.harmed,
            "cost_per_round": {
                one.label: {"mb": self.cost(one).megabytes, "seconds": self.cost(one).seconds}
                for one in self.groups
            },
            "validation": [_short(row) for row in self.rows],
        }

    @property
    def rows(self) -> list[Row]:
        return rows(self.views)


def _plain(one: AgainstBest) -> dict[str, Any]:
    return {"behind": one.behind, "pairs": one.pairs, "p": one.p}


KEPT = ("method", "metric", "seeds", "rounds", "diverged", "accuracy", "p10", "worst", "gain",
        "harmed", "mb_up", "mb_down", "seconds_per_round")  # fmt: skip


def _short(row: Mapping[str, Any]) -> Row:
    return {key: row[key] for key in KEPT if key in row}
