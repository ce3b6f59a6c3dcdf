"""Recipes from beginning to end: find what is missing, run it, and write what came out."""

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from idiolect.core import files
from idiolect.errors import UserError
from idiolect.papers import cell_list, paper_figure, paper_table, planner, tuned_rows
from idiolect.papers.cells import (
    WAITING,
    Cell,
    cells,
    check_only,
    trials,
    with_cells_of_the_same_runs,
)
from idiolect.papers.evidence import Evidence
from idiolect.papers.paper_table import PaperTable
from idiolect.papers.planner import CellJob, Missing
from idiolect.papers.recipe import Recipe
from idiolect.papers.results import Results
from idiolect.papers.runner import Outcome, RecipeProgress, Runner, clock
from idiolect.papers.verdicts import Verdict
from idiolect.runs.build import builder


class RecipePart(Evidence):
    """One recipe of a campaign, with what there is of it."""

    found: Missing  # of the cells that were asked for
    whole: Missing  # of all, which the written table shows

    @cached_property
    def table(self) -> PaperTable:
        states = {(cell.row, cell.column): "cannot run" for cell in self.whole.broken}
        states |= tuned_rows.states(self.tuned)
        states |= {(cell.row, cell.column): "no data" for cell, _ in self.whole.no_data}
        states |= dict.fromkeys(self.results.failed_places(), "failed")
        return self.table_with(states)

    def view(self, width: int) -> Any:
        return paper_table.terminal(self.table, width)

    def rendered(self, form: str) -> str:
        text = paper_table.FORMATS[form](self.table)
        if form == "md":
            lines = (paper_table.no_html(verdict.line) for verdict in self.verdicts)
            text += "\n" + "".join(f"- {line}\n" for line in lines)
        return text

    def missing_lines(self) -> list[str]:
        """What there is no number for yet, and why."""
        lines = []
        failed = self.results.failures()
        for job in self.found.jobs:
            reason = next((failed[c.name] for c in job.cells if c.name in failed), "")
            lines.append(f"missing: {job.label}" + (f" (failed: {reason})" if reason else ""))
        if self.found.waiting:
            names = dict.fromkeys(cell.label for cell in self.found.waiting)
            lines.append(f"{WAITING}, {len(self.found.waiting)} cells: {', '.join(names)}")
        for reason, count in Counter(reason for _, reason in self.found.no_data).items():
            lines.append(f"no data for {count} runs: {reason}")
        for reason, count in Counter(cell.broken for cell in self.found.broken).items():
            lines.append(f"cannot be run, {count} cells: {reason}")
        return lines

    def counts(self) -> dict[str, Any]:
        found, answers = self.found, [verdict.answer for verdict in self.verdicts]
        by_state = {
            "done": len(found.done),
            "missing": sum(len(job.cells) for job in found.jobs) + len(found.waiting),
            "no data": len(found.no_data),
            "cannot run": len(found.broken),
        }
        return {
            "recipe": self.recipe.name,
            "cells": sum(by_state.values()),
            **by_state,
            "claims": len(answers),
            "hold": answers.count("holds"),
            "do not hold": answers.count("does not hold"),
            "open": answers.count("not enough evidence"),
        }

    @property
    def lost_its_data(self) -> bool:
        """Whether data is not here that was there when the results were written."""
        places = {(cell.row, cell.column) for cell, _ in self.whole.no_data}
        told = self.results.states()
        return any(told.get(place) != "no data" for place in places)

    def write(self, note: Callable[[str], None]) -> None:
        """Table, verdicts, cells and figure into the folder of results."""
        folder = self.results.folder
        with self.results.locked():
            self.results.lacking_data(self.whole.no_data)
            cell_list.write(self.results)
            for form, ending in (("md", "md"), ("latex", "tex"), ("csv", "csv")):
                files.write_text(folder / f"table.{ending}", self.rendered(form))
            files.write_text(folder / "verdicts.json", _as_json(self.verdicts))
            self.results.write_or_remove("tuning.json", tuned_rows.as_json(self.tuned))
            if self.recipe.kind == "figure":
                try:
                    paper_figure.write(self.results)
                except UserError as error:  # everything else is there
                    note(f"{self.recipe.name}: no figure: {error}")


class Campaign:
    """Some recipes, one folder of results, one folder of runs."""

    def __init__(
        self,
        recipes: Sequence[Recipe],
        results: Path,
        out: Path,
        quick: bool = False,
        seeds: Sequence[int] | None = None,
        only: Sequence[str] = (),
        how: Mapping[str, Any] | None = None,
        allow_code: Collection[str] = (),
    ) -> None:
        self.allow_code = allow_code
        self.recipes, self.root, self.out, self.quick = recipes, results, out, quick
        self.seeds, self.only, self.how = seeds, only, dict(how or {})
        self.interrupted = False
        check_only(recipes, only, quick)
        self.parts = [self._part(recipe) for recipe in recipes]

    def run(self, processes: int, budget: float | None, progress: RecipeProgress) -> Outcome:
        """Take over what other recipes have, then run what is still missing: first all that is
        known, then what its trials chose."""
        until = None if budget is None else time.monotonic() + budget
        outcome, tried = Outcome(), set[Path]()
        for part in self.parts:
            for line in part.missing_lines():
                if not line.startswith("missing"):
                    progress.note(f"{part.recipe.name}: {line}")
        while not outcome.interrupted:
            self.take_over(progress.note)
            others = planner.all_results(self.root, self.quick)
            jobs = [job for part in self.parts for job in part.found.jobs]
            jobs = [job for job in jobs if tried.isdisjoint(job.outs)]
            if not jobs:
                break
            tried.update(out for job in jobs for out in job.outs)
            left = None if until is None else max(0.0, until - time.monotonic())
            outcome.add(self._run(jobs, others, processes, left, progress))
        self.interrupted = outcome.interrupted
        if outcome.out_of_time:
            progress.note("the budget is spent; the same command goes on")
        elif outcome.interrupted:
            progress.note("stopped; the same command goes on")
        return outcome

    def _run(
        self,
        jobs: Sequence[CellJob],
        others: Sequence[Results],
        processes: int,
        budget: float | None,
        progress: RecipeProgress,
    ) -> Outcome:
        for job in jobs:
            for cell in job.cells:
                builder(cell.config, self.allow_code, f"recipe {job.label}")
        records = [record for one in others for record in one.records]
        planner.estimate(jobs, records, on_gpu := planner.gpu_here(self.how))
        values = {part.recipe.name: part.values for part in self.parts}
        order = planner.ordered(jobs, values)
        if budget is None and processes > 1:  # all will be done: no long one at the end, alone
            order.sort(key=lambda job: -job.seconds)
        total = clock(sum(job.seconds for job in order) / processes)
        progress.note(f"{len(order)} stacks of runs to do, estimated {total}")
        outcome = Runner(order, processes, budget, progress, self.allow_code, on_gpu).run()
        self.parts = [self._part(recipe) for recipe in self.recipes]
        return outcome

    def write(self, note: Callable[[str], None]) -> None:
        for part in self.parts:
            part.write(note)

    def overview(self) -> list[dict[str, Any]]:
        return [part.counts() for part in self.parts]

    def as_rows(self) -> list[dict[str, Any]]:
        """Everything, for programs."""
        return [
            {
                **part.counts(),
                "table": [vars(cell) for cell in part.table.cells.values() if cell.exists],
                "tuning": tuned_rows.as_json(part.tuned),
                "verdicts": json.loads(_as_json(part.verdicts)),
                "missing": part.missing_lines(),
            }
            for part in self.parts
        ]

    def _part(self, recipe: Recipe) -> RecipePart:
        part = RecipePart(Results(self.root, recipe, self.quick))
        chosen = tuned_rows.chosen(part.tuned)

        def planned(only: Sequence[str]) -> list[Cell]:
            tried = trials(recipe, self.quick, only, self.how)
            return [*tried, *cells(recipe, self.seeds, self.quick, only, self.how, chosen)]

        everything = planned(())
        part.found = part.whole = planner.missing(part.results, everything, self.out)
        if self.only:
            wanted = with_cells_of_the_same_runs(planned(self.only), everything)
            part.found = planner.missing(part.results, wanted, self.out)
        return part

    def take_over(
        self, note: Callable[[str], None], of: Sequence[RecipePart] | None = None
    ) -> list[RecipePart]:
        """Fill cells of all recipes, or of some, with runs that were made for other recipes; the
        recipes that got some."""
        others, names = planner.all_results(self.root, self.quick), set()
        for part in self.parts if of is None else of:
            apart = [one for one in others if one.recipe.name != part.recipe.name]
            lacking = [cell for job in part.found.jobs for cell in job.cells]
            if taken := sum(part.results.borrow(cell, apart) for cell in lacking):
                names.add(part.recipe.name)
                note(f"{part.recipe.name}: {taken} runs were made for another recipe")
        if names:
            self.parts = [self._part(recipe) for recipe in self.recipes]
        return [part for part in self.parts if part.recipe.name in names]


def _as_json(verdicts: Sequence[Verdict]) -> str:
    def told(verdict: Verdict) -> dict[str, Any]:
        return {
            "claim": verdict.claim.id,
            "says": verdict.claim.says,
            "verdict": verdict.answer,
            "reason": verdict.reason,
            "test": verdict.test,
            "quick": verdict.quick,
            "comparisons": [
                {key: _plain(value) for key, value in vars(one).items()}
                for one in verdict.comparisons
            ],
        }

    return json.dumps([told(one) for one in verdicts], indent=1, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    """Numbers as JSON has them, to six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if abs(value) < float("inf") else None
    return list(value) if isinstance(value, tuple) else value
