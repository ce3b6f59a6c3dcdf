"""Tuned rows: what their trials chose in every column.

A trial is a run of the row with one point of its grid and a share of every client's training
samples held out; its number is the protocol's on those samples. The point with the highest mean
over seeds is chosen, and the row's cells are run with it on all training samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from idiolect.papers.cells import WAITING, Cell, told, trials
from idiolect.papers.results import VALIDATION, Results
from idiolect.papers.run_record import Record
from idiolect.runs.trials import mean_worth, rank

LOST = "every trial diverged"


@dataclass(frozen=True)
class GridPoint:
    """One point of the grid, with the records of its runs by seed as far as they are there."""

    point: Mapping[str, Any]
    records: Mapping[int, Record | None]
    broken: str = ""

    @property
    def finished(self) -> int:
        return sum(record is not None for record in self.records.values())

    @property
    def validation(self) -> float | None:
        """Mean over seeds; None if one diverged or is not there."""
        return mean_worth([r.shown(VALIDATION) if r else None for r in self.records.values()])


@dataclass(frozen=True)
class TunedCell:
    """A row and column whose settings trials choose."""

    trials: Sequence[GridPoint]

    @property
    def best(self) -> GridPoint | None:
        """The chosen one, the first of equals; None while trials are missing or if all are lost."""
        if self.finished < self.all:
            return None
        first = max(self.trials, key=lambda one: rank(one.validation))
        return None if first.validation is None else first

    @property
    def finished(self) -> int:
        return sum(trial.finished for trial in self.trials)

    @property
    def all(self) -> int:
        return sum(len(trial.records) for trial in self.trials)

    @property
    def chosen(self) -> Mapping[str, Any] | str:
        """The values, or why there are none."""
        if broken := next((trial.broken for trial in self.trials if trial.broken), ""):
            return broken
        if self.finished < self.all:
            return WAITING
        return self.best.point if self.best else LOST

    @property
    def state(self) -> str:
        """What the table shows while there is no number."""
        return str(self.chosen) if self.chosen in (WAITING, LOST) else ""

    @property
    def line(self) -> str:
        """What was chosen, or how far it is."""
        best = self.best
        if best is None:
            missing = f"not yet, {self.finished} of {self.all} trials are there"
            return missing if self.chosen == WAITING else str(self.chosen)
        edge = ", ".join(self._at_the_edge(best.point))
        about = [f"{edge} at the edge of the grid"] if edge else []
        gone = [" ".join(told(one.point)) for one in self.trials if one.validation is None]
        about += [f"diverged: {', '.join(gone)}"] if gone else []
        return " ".join(told(best.point)) + (f" ({'; '.join(about)})" if about else "")

    def _at_the_edge(self, point: Mapping[str, Any]) -> list[str]:
        """The settings whose best value may lie beyond the values that were tried."""
        found = []
        for key, value in point.items():
            tried = [trial.point[key] for trial in self.trials]
            several = len(set(map(str, tried))) > 1 and all(map(_is_number, tried))
            if several and value in (min(tried), max(tried)):
                found.append(key.removeprefix("method."))
        return found

    def as_dict(self) -> dict[str, Any]:
        """For tuning.json and other programs."""
        best = self.best
        each = [
            {
                "values": dict(trial.point),
                "validation": trial.validation,
                "by_seed": {
                    s: r.shown(VALIDATION) if r else None for s, r in trial.records.items()
                },
            }
            for trial in self.trials
        ]
        edge = self._at_the_edge(best.point) if best else []
        return {"chosen": dict(best.point) if best else None, "at_the_edge": edge, "trials": each}


Tuned = Mapping[tuple[str, str], TunedCell]


def tuned_cells(results: Results) -> dict[tuple[str, str], TunedCell]:
    """All rows and columns that are tuned, with what there is of their trials."""
    by_place: dict[tuple[str, str], list[Cell]] = {}
    for cell in trials(results.recipe, results.quick):
        by_place.setdefault((cell.row, cell.column), []).append(cell)
    return {place: TunedCell(_trials(results, made)) for place, made in by_place.items()}


def _trials(results: Results, made: Sequence[Cell]) -> list[GridPoint]:
    by_point: dict[str, list[Cell]] = {}
    for cell in made:
        by_point.setdefault(str(cell.point), []).append(cell)
    return [
        GridPoint(
            members[0].point,
            {cell.seed: None if cell.broken else results.of(cell) for cell in members},
            members[0].broken,
        )
        for members in by_point.values()
    ]


def chosen(tuned: Tuned) -> dict[tuple[str, str], Mapping[str, Any] | str]:
    return {place: one.chosen for place, one in tuned.items()}


def states(tuned: Tuned) -> dict[tuple[str, str], str]:
    """Why cells of tuned rows have no number."""
    return {place: one.state for place, one in tuned.items() if one.state}


def as_json(tuned: Tuned) -> dict[str, Any]:
    return {"/".join(place): one.as_dict() for place, one in tuned.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
