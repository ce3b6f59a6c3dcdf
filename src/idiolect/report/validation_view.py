"""A run as its validation samples see it: for choices that must not look at the test samples."""

from dataclasses import replace

from idiolect.errors import UserError
from idiolect.report.load import Run
from idiolect.runs.recorder import summarise
from idiolect.simulation import metrics

SERIES = ("before", "after")


def on_validation(run: Run) -> Run:
    """The same run with the scores on validation samples in place of those on test samples, which
    are not in it any more; tables, tests and gains then speak of validation."""
    if not metrics.has_validation(run.table):
        raise UserError(f"{run.path} has no validation samples; add --set split.val_share=0.2")
    metric = metrics.metric_of(run.table).name
    scores = {f"{what}_{s}" for what in (metric, "loss") for s in (*SERIES, "global", "guidance")}
    table = {
        name: column
        for name, column in run.table.items()
        if name not in scores and name != "test_size" and not name.startswith("val_")
    }
    table |= {name: run.table[f"val_{name}"] for name in scores if f"val_{name}" in run.table}
    table["test_size"] = run.table["val_size"]
    return replace(run, table=table, summary=summarise(run.config, table, run.events))
