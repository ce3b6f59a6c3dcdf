"""The folder of results of a recipe: what was run, and what came out.

`runs.jsonl` has one record per finished run, `cells.csv` one line per cell for people and programs,
`series/` one small CSV per run where a figure needs the rounds, `failed.json` why cells could not
be run. All files are written anew and renamed, under a lock: a kill at any moment leaves a file as
it was, and two commands can write to one folder.

A cell's record is found by its settings, so cells with equal settings share one run.
"""

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import idiolect
from idiolect.core import files
from idiolect.core.text import one_line
from idiolect.errors import UserError
from idiolect.papers import numbers, round_series
from idiolect.papers.cells import Cell, same_settings, settings_digest
from idiolect.papers.numbers import MISSING, FinishedRun, Moment, StoredRun
from idiolect.papers.recipe import Recipe
from idiolect.papers.run_record import Record, read_records
from idiolect.runs import revision
from idiolect.runs.config import Config
from idiolect.runs.directory import disk_errors
from idiolect.runs.run_files import NAME, NAMES, Form, check_files, checked, read_json

VALIDATION = "validation"  # the number of a trial
FILES = ("runs.jsonl", "cells.csv", "failed.json", "no_data.json", "verdicts.json", "tuning.json",
         "table.*", "figure.*")  # fmt: skip
LACKING: Form = {"how": NAME, "cells": NAMES}  # of a dataset that is not here
HOME = re.compile(r"(?<![\w.])/(?:[\w.+~-]+/)+")  # folders of the machine a run was made on


class Results:
    """The records of one recipe, at full size or quick."""

    def __init__(self, root: Path, recipe: Recipe, quick: bool = False) -> None:
        self.root, self.recipe, self.quick = root, recipe, quick
        self.folder = root / recipe.name / "quick" if quick else root / recipe.name
        self._keep(self._read())

    @property
    def seeds(self) -> list[int]:
        return sorted({record.seed for record in self.records})

    def of(self, cell: Cell, drawn: bool = True) -> Record | None:
        """The record of this cell: of a run with its settings that has all its numbers and, if it
        is to be `drawn`, its series."""
        wanted, series = self._needed(cell)
        for record in self._like(cell.config):
            whole = self._has_numbers(record, wanted)
            if whole and (not drawn or self._has_series(record, series)):
                return record
        return None

    def _has_numbers(self, record: Record, wanted: Collection[str]) -> bool:
        """Whether it has them all: what its series tell is added."""
        missing = [metric for metric in wanted if record.shown(metric) is MISSING]
        if missing and self.series_file(record).exists():
            kept = round_series.read(self.series_file(record))
            run = StoredRun(record.config, record.summary, kept)
            found = {metric: numbers.number_of_series(run, metric) for metric in missing}
            record.numbers.update({k: v for k, v in found.items() if v is not MISSING})
        return all(record.shown(metric) is not MISSING for metric in missing)

    def _needed(self, cell: Cell) -> tuple[set[str], tuple[str, ...]]:
        """Numbers and series that a cell cannot do without."""
        if cell.point:
            return {VALIDATION}, ()
        place = cell.row, cell.column
        return self.recipe.numbers_of(*place), self.recipe.drawn_of(*place)

    def add(self, cells: Sequence[Cell], outs: Sequence[Path]) -> None:
        """Record finished run directories, each of which may be the run of several cells."""
        made: dict[str, Record] = {}
        drawn: dict[str, dict[str, list[Moment]]] = {}
        wanted: dict[str, tuple[set[str], set[str]]] = {}
        for cell in cells:
            metrics, kept = wanted.setdefault(settings_digest(cell.config), (set(), set()))
            metrics |= self._needed(cell)[0]
            if not cell.point:
                metrics |= set(self.recipe.numbers)
                kept |= set(self.recipe.series_of(cell.row, cell.column))
        for cell, out in zip(cells, outs, strict=True):
            key = settings_digest(cell.config)
            if key in made:
                continue
            run, (metrics, kept) = FinishedRun(out), wanted[key]
            if judged := run.summary.get("metric"):
                raise UserError(f"recipes compare accuracies; this is {judged['name']}")
            shown = {name: numbers.number(run, name) for name in sorted(metrics)}
            about = _machine(out, cell.config)
            made[key] = Record(shown, portable(cell.config), run.summary, about, self.quick)
            drawn[key] = {name: run.series(name) for name in sorted(kept)}
        with self.locked():
            for key, moments in drawn.items():
                if moments:
                    round_series.write(self.series_file(made[key]), moments)
            self._put(list(made.values()))
            names = {cell.name for cell in cells}
            left = {name: why for name, why in self.failures().items() if name not in names}
            self.write_or_remove("failed.json", left)

    def borrow(self, cell: Cell, others: Sequence["Results"]) -> bool:
        """Copy the record of the same run from another recipe, if one has it."""
        for other in others:
            for found in other._like(cell.config):
                wanted, drawn = self._needed(cell)
                if not other._has_numbers(found, wanted) or not other._has_series(found, drawn):
                    continue
                shown = {metric: found.shown(metric) for metric in sorted(wanted)}
                source = found.borrowed or other.recipe.name
                record = Record(
                    shown, found.config, found.summary, found.machine, self.quick, source
                )
                with self.locked():
                    if other.series_file(found).exists():
                        moments = round_series.read(other.series_file(found))
                        round_series.write(self.series_file(record), moments)
                    self._put([record])
                return True
        return False

    def fail(self, cell: Cell, reason: str) -> None:
        with self.locked():
            failures = {**self.failures(), cell.name: HOME.sub("", reason)}
            self.write_or_remove("failed.json", failures)

    def failures(self) -> dict[str, str]:
        """Why cells could not be run when that was last tried."""
        path = self.folder / "failed.json"
        found = {name: checked(told, NAME, path, name) for name, told in read_json(path).items()}
        return {one_line(name): one_line(reason) for name, reason in found.items()}

    def unavailable(self) -> dict[str, str]:
        """Datasets that were not there when it was last run, and how to get them."""
        return {name: found["how"] for name, found in self._no_data().items()}

    def states(self) -> dict[tuple[str, str], str]:
        """Why cells were empty when the recipe was last run, by row and column."""
        found: dict[tuple[str, str], str] = {}
        for told in self._no_data().values():
            found |= dict.fromkeys((_place(name) for name in told["cells"]), "no data")
        return found | dict.fromkeys(self.failed_places(), "failed")

    def failed_places(self) -> set[tuple[str, str]]:
        """Rows and columns of which something failed when that was last tried."""
        return {_place(name) for name in self.failures()}

    def lacking_data(self, cells: Sequence[tuple[Cell, str]]) -> None:
        """Write down which cells could not be run for want of data."""
        told: dict[str, Any] = {}
        for cell, reason in cells:
            name = cell.config["data"]["name"]
            one = told.setdefault(name, {"how": _elsewhere(reason), "cells": []})
            place = f"{cell.row}/{cell.column}"
            one["cells"] += [place] if place not in one["cells"] else []
        self.write_or_remove("no_data.json", told)

    def _no_data(self) -> dict[str, Any]:
        path = self.folder / "no_data.json"
        return {name: checked(told, LACKING, path, name) for name, told in read_json(path).items()}

    def write_or_remove(self, name: str, told: Mapping[str, Any]) -> None:
        """To be called with the results locked; a file that would say nothing is not there."""
        if told:
            files.write_json(self.folder / name, dict(told))
        else:
            (self.folder / name).unlink(missing_ok=True)

    def series(self, cell: Cell) -> dict[str, list[Moment]]:
        record = self.of(cell)
        kept = record is not None and self.series_file(record).exists()
        return round_series.read(self.series_file(record)) if record and kept else {}

    def series_file(self, record: Record) -> Path:
        method, revised = record.config["method"]["name"], _of_revision(record.config)
        name = f"{method}-seed{record.seed}-{record.digest}{revised}.csv"
        return self.folder / "series" / name

    def _has_series(self, record: Record, wanted: Sequence[str]) -> bool:
        path = self.series_file(record)
        return not wanted or (path.exists() and set(wanted) <= set(round_series.names(path)))

    def _like(self, config: Config) -> list[Record]:
        config = portable(config)
        near = self._index.get(_coarse(config), []) if config else []
        return [record for record in near if same_settings(record.config, config)]

    def _keep(self, records: list[Record]) -> None:
        self.records = records
        self._index: dict[Any, list[Record]] = {}
        for record in records:
            self._index.setdefault(_coarse(record.config), []).append(record)

    def _put(self, fresh: Sequence[Record]) -> None:
        """A new record replaces the one with the same settings; its numbers are kept too."""
        before = self._read()
        old = {one.digest: one for one in before}
        for record in fresh:
            if record.digest in old:
                record.numbers.update(
                    {k: v for k, v in old[record.digest].numbers.items() if k not in record.numbers}
                )
        new = {one.digest for one in fresh}
        kept = [one for one in before if one.digest not in new] + list(fresh)
        kept.sort(key=lambda one: (one.config["method"]["name"], one.digest[:6], one.seed))
        self._keep(kept)
        lines = [json.dumps(vars(one), allow_nan=False) for one in kept]
        files.write_text(self.folder / "runs.jsonl", "".join(f"{line}\n" for line in lines))

    def _read(self) -> list[Record]:
        check_files(self.folder)
        check_files(self.folder / "series")
        return [one for one in read_records(self.folder / "runs.jsonl") if one.is_current]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else writes in here; what a killed process left half written is removed."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / ".lock").open("a", encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write to {self.folder}: {error.strerror}") from None
        with file:
            with suppress(ImportError, OSError):
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            files.remove_drafts(self.folder, *FILES)
            files.remove_drafts(self.folder / "series", "*.csv")
            with disk_errors(self.folder, lambda: "the same command goes on"):
                yield


def _of_revision(config: Config) -> str:
    """The end of a name: what one revision of a method made is not another's."""
    now = revision.of(config) or revision.FIRST
    return f"-revision{now}" if now > revision.FIRST else ""


def _place(name: str) -> tuple[str, str]:
    """Row and column of a cell or trial by its name."""
    row, _, column = name.partition(" ")[0].partition("/")
    return row, column


def _elsewhere(reason: str) -> str:
    """How to get data, without the folders of this machine."""
    what, _, how = reason.partition(";")
    return f"{what.partition(' in ')[0]};{how}" if how else HOME.sub("", reason)


def _coarse(config: Config) -> tuple[Any, ...]:
    """What runs with the same settings surely have in common; to find them quickly."""
    names = (config[key].get("name") for key in ("method", "data", "split"))
    return (*names, config["rounds"], config["seed"])


def _machine(out: Path, config: Config) -> dict[str, Any]:
    env = read_json(out / "env.json")
    return {
        "device": env.get("device_name") or config["device"],
        "commit": env.get("commit"),
        "started": env.get("started"),
        "python": env.get("python"),
        "torch": env.get("packages", {}).get("torch"),
        "version": idiolect.__version__,
        "revision": revision.recorded(env, out / "env.json"),
        "threads": env.get("threads"),
        "cores": os.cpu_count(),
    }


def portable(value: Any) -> Any:
    """Settings without the folders of this machine, which say nothing elsewhere: of each there is
    a short hash, so that files of the same name in two folders stay two."""
    if isinstance(value, Mapping):
        return {key: portable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(portable, value))
    return HOME.sub(_hashed, value) if isinstance(value, str) else value


def _hashed(folder: re.Match[str]) -> str:
    return hashlib.sha256(folder[0].encode()).hexdigest()[:8] + "/"
