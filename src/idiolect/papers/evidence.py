"""What the finished runs of a recipe show: numbers, table and verdicts."""

from functools import cached_property

from idiolect.papers import cell_list
from idiolect.papers.paper_table import PaperTable, States
from idiolect.papers.results import Results
from idiolect.papers.tuned_rows import Tuned, tuned_cells
from idiolect.papers.verdicts import Seedings, Values, Verdict, judge


class Evidence:
    """Of one recipe, at full size or quick, read once: what is recorded later is not in it."""

    def __init__(self, results: Results) -> None:
        self.results, self.recipe, self.quick = results, results.recipe, results.quick

    @cached_property
    def tuned(self) -> Tuned:
        return tuned_cells(self.results)

    @cached_property
    def values(self) -> Values:
        """Row, column, metric -> seed -> number; what was not measured is left out."""
        found: dict[tuple[str, str, str], dict[int, float]] = {}
        for cell, record in self._finished:
            for metric in self.recipe.numbers_of(cell.row, cell.column):
                value = record.shown(metric)
                if value is not None:
                    found.setdefault((cell.row, cell.column, metric), {})[cell.seed] = value
        return found

    @cached_property
    def diverged(self) -> Seedings:
        """Row, column -> seeds whose run diverged, whether or not it has a number all the same."""
        found: dict[tuple[str, str], set[int]] = {}
        for cell, record in self._finished:
            if record.diverged:
                found.setdefault((cell.row, cell.column), set()).add(cell.seed)
        return found

    @cached_property
    def verdicts(self) -> list[Verdict]:
        return judge(self.recipe, self.values, self.quick, self.diverged)

    def table_with(self, why: States) -> PaperTable:
        """The table; `why` cells are empty."""
        return PaperTable(self.recipe, self.values, why, self.quick, self.tuned, self.diverged)

    @cached_property
    def _finished(self) -> list[cell_list.Finished]:
        return cell_list.finished(self.results, self.tuned)
