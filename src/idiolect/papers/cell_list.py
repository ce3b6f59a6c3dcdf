"""cells.csv: one line per finished cell, written from the records and the recipe."""

import csv
import io

from idiolect.core import files
from idiolect.papers import tuned_rows
from idiolect.papers.cells import Cell, cells
from idiolect.papers.results import Results
from idiolect.papers.run_record import Record
from idiolect.papers.tuned_rows import Tuned

COLUMNS = (
    *("recipe", "row", "column", "seed", "metric", "value", "quick", "diverged", "rounds"),
    *("commit", "device", "dtype", "seconds", "started", "version", "settings", "run_for"),
)


Finished = tuple[Cell, Record]


def finished(results: Results, tuned: Tuned, drawn: bool = False) -> list[Finished]:
    """All cells that have a record, whatever seeds were run; trials are none. `drawn`: those only
    that have their series too."""
    chosen = tuned_rows.chosen(tuned)
    everything = cells(results.recipe, results.seeds, results.quick, chosen=chosen)
    found = [(cell, results.of(cell, drawn)) for cell in everything if not cell.broken]
    return [(cell, record) for cell, record in found if record is not None]


def write(results: Results) -> None:
    """To be called with the results locked."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for cell, record in finished(results, tuned_rows.tuned_cells(results)):
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
