"""cells.csv: one line per finished cell, written from the records and the recipe."""

import csv
import io

from idiolect.core import files
from idiolect.papers import tuned_rows
from idiolect.papers.cells import Cell, cells
from idiolect.papers.results import Results
from idiolect.papers.run_record import Record

COLUMNS = (
    *("recipe", "row", "column", "seed", "metric", "value", "quick", "diverged", "rounds"),
    *("commit", "device", "dtype", "seconds", "started", "version", "settings", "run_for"),
)


def finished(results: Results, drawn: bool = False) -> list[tuple[Cell, Record]]:
    """All cells that have a record, whatever seeds were run; trials are none. `drawn`: those only
    that have their series too."""
    chosen = tuned_rows.chosen(tuned_rows.tuned_cells(results))
    everything = cells(results.recipe, results.seeds, results.quick, chosen=chosen)
    found = [(cell, results.of(cell, drawn)) for cell in everything if not cell.broken]
    return [(cell, record) for cell, record in found if record is not None]


def values(results: Results) -> dict[tuple[str, str, str], dict[int, float]]:
    """Row, column, metric -> seed -> number; what was not measured is left out."""
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for cell, record in finished(results):
        for metric in results.recipe.numbers_of(cell.row, cell.column):
            value = record.shown(metric)
            if value is not None:
                found.setdefault((cell.row, cell.column, metric), {})[cell.seed] = value
    return found


def lost(results: Results) -> dict[tuple[str, str], set[int]]:
    """Row, column -> seeds that diverged and so have no number."""
    found: dict[tuple[str, str], set[int]] = {}
    for cell, record in finished(results):
        metrics = results.recipe.numbers_of(cell.row, cell.column)
        if record.diverged and any(record.shown(metric) is None for metric in metrics):
            found.setdefault((cell.row, cell.column), set()).add(cell.seed)
    return found


def write(results: Results) -> None:
    """To be called with the results locked."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for cell, record in finished(results):
        metric = results.recipe.metric_of(cell.row, cell.column)
        value, about = record.shown(metric), record.machine
        writer.writerow(
            [results.recipe.name, cell.row, cell.column, cell.seed, metric,
             "" if value is None else f"{value:.6g}", _yes(results.quick), _yes(record.diverged),
             record.summary["rounds"], about.get("commit"), about.get("device"),
             record.config["dtype"], f"{record.seconds:.1f}", about.get("started"),
             about.get("version"), record.digest, record.borrowed or results.recipe.name]
        )  # fmt: skip
    files.write_text(results.folder / "cells.csv", text.getvalue())


def _yes(true: bool) -> str:
    return "yes" if true else "no"
