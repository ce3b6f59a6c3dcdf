"""Figures for a paper: accuracy over rounds as PDF, SVG or PNG, as wide as a column."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from idiolect.core import files
from idiolect.errors import UserError
from idiolect.report.load import Run
from idiolect.report.plots import accuracy_over_rounds, score_axis
from idiolect.report.run_groups import FADED, LOCAL, Group, groups

ENDINGS = (".pdf", ".svg", ".png")
COLUMN = (3.3, 2.3)  # inches: one of two columns
# Letters of a label beside which another one fits, and of the longest one that fits as it is
LONG_LABEL, ONE_LINE = 22, 50
LINE_HEIGHT = 1.5  # of a legend, times the size of its letters
# Okabe and Ito's colours, which people with any kind of colour vision tell apart
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREYS = {LOCAL: "#555555", FADED: "#C8C8C8"}
MARKERS = "osD^vPX"
DASHES = ("-", "--", ":", "-.")
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "pdf.fonttype": 42,  # letters stay letters
    "svg.fonttype": "none",
    "svg.hashsalt": "idiolect",  # the same runs give the same file
}


def write_figure(found: Sequence[Run], path: Path, serif: bool = False) -> None:
    """Accuracy over rounds, mean over seeds with one standard deviation."""
    with drawing(path, serif) as axes:
        sets = groups(found)
        figure = accuracy_over_rounds(sets, "accuracy")
        if figure is None:
            raise UserError("nothing was measured yet, so there is no figure")
        _draw(axes, sets, figure["data"])


@contextmanager
def drawing(path: Path, serif: bool = False) -> Iterator[Any]:
    """Axes to draw on; the figure is written at the end."""
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"--figure {path} must end in {', '.join(ENDINGS)}")
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise UserError("figures need matplotlib: pip install 'idiolect[figures]'") from None
    with matplotlib.rc_context({**STYLE, "font.family": "serif" if serif else "sans-serif"}):
        canvas, axes = pyplot.subplots(figsize=COLUMN, layout="constrained")
        try:
            yield axes
            form = path.suffix.lower()[1:]
            told = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(form)
            files.remove_drafts(path.parent, path.name)
            with files.replacing(path) as draft:
                canvas.savefig(draft, format=form, dpi=300, metadata=told)
        finally:
            pyplot.close(canvas)


def _draw(axes: Any, sets: Sequence[Group], traces: Sequence[dict[str, Any]]) -> None:
    by_label = {group.label: group for group in sets}
    edges: dict[str, list[float]] = {}
    # Grey lines first, so that coloured ones lie above them.
    for trace in sorted(traces, key=lambda one: -by_label[one["group"]].colour):
        group = by_label[trace["group"]]
        colour = GREYS.get(group.colour) or COLOURS[group.colour]
        if trace.get("band") == "seeds":
            if below := edges.pop(group.label, None):
                axes.fill_between(trace["x"], below, trace["y"], color=colour, alpha=0.15, lw=0)
            else:
                edges[group.label] = trace["y"]
        elif not trace.get("band"):
            _line(axes, group, trace, colour)
    axes.set_xlabel("round")
    axes.set_ylabel(score_axis(sets))
    axes.set_xlim(left=0)
    _legend(axes)


def _line(axes: Any, group: Group, trace: dict[str, Any], colour: str) -> None:
    faded, alone = group.colour == FADED, group.colour == LOCAL
    every = max(1, len(trace["x"]) // 6)
    axes.plot(
        trace["x"],
        np.asarray(trace["y"], float),
        color=colour,
        linewidth=0.5 if faded else 1.2,
        linestyle=DASHES[(group.dash + 1) % len(DASHES)] if alone else "-",
        marker=None if faded or alone else MARKERS[group.colour % len(MARKERS)],
        markevery=every,
        markersize=3,
        label=None if faded else _harmless(group.label),
    )


def _legend(axes: Any) -> None:
    """Above the plot, where no curve is: in two columns, or in one if labels are long. The figure
    grows by the legend's height, and the letters of labels too long for its width get smaller."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return
    canvas = axes.figure
    longest = max(map(len, labels))
    columns = 1 if longest > LONG_LABEL or len(labels) == 1 else 2
    size = STYLE["legend.fontsize"] * min(1, ONE_LINE / longest)
    lines = -(-len(labels) // columns)
    width, height = COLUMN
    canvas.set_size_inches(width, height + max(0, lines - 1) * size * LINE_HEIGHT / 72)
    canvas.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=columns,
        fontsize=size,
        handlelength=1.6,
        columnspacing=0.9,
        labelspacing=0.3,
    )


def _harmless(label: str) -> str:
    """matplotlib leaves out names that begin with _ and reads a formula between two $."""
    return "\u200b" * label.startswith("_") + label.replace("$", r"\$")
