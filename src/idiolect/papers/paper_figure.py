"""Figures by matplotlib: sized for a two-column paper, safe for the colour-blind.

Lines differ in colour (Okabe and Ito's eight), dash and marker; bands are one standard deviation
over seeds; the paper's own numbers are hollow diamonds.
"""

import textwrap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from idiolect.core import files
from idiolect.errors import UserError
from idiolect.papers.figure_data import Panel, panels
from idiolect.papers.numbers import unit
from idiolect.papers.recipe import PAPERS, Chart, Recipe
from idiolect.papers.results import Results

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
NARROW, WIDE = 3.35, 6.9  # inches: one column and two
LETTERS_UP = 24  # that fit beside a panel
FORMATS = ("pdf", "svg", "png")
STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "idiolect",
    "pdf.fonttype": 42,
    "figure.dpi": 200,
}
NAMES = {
    "accuracy": "accuracy, mean of clients (%)",
    "test_accuracy": "test accuracy (%)",
    "accuracy_after": "accuracy after local training, mean of clients (%)",
    "train_loss": "training loss",
    "train_accuracy": "training accuracy (%)",
    "protocol": "accuracy (%)",
}


def write(results: Results) -> list[Path]:
    """figure.pdf, .svg and .png in the folder of results; none of them if nothing was run, or if
    what they were drawn from does not count any more."""
    shown, paths = panels(results), [results.folder / f"figure.{ending}" for ending in FORMATS]
    if not shown:
        for path in paths:
            path.unlink(missing_ok=True)
        return []
    figure = draw(results, shown)
    import matplotlib  # draw() says what to do where it is missing

    for path, ending in zip(paths, FORMATS, strict=True):
        about = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None}}
        with files.replacing(path) as draft, matplotlib.rc_context(STYLE):
            figure.savefig(draft, format=ending, metadata=about[ending], bbox_inches="tight")
    return paths


def draw(results: Results, shown: Sequence[Panel]) -> Any:
    """The figure, as an object of matplotlib."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise UserError("figures need matplotlib; pip install 'idiolect[figures]'") from None

    chart = results.recipe.shown
    assert chart is not None
    with matplotlib.rc_context(STYLE):
        across = _across(chart, shown)
        places = _places(shown, across)
        down = 1 + max(places) // across
        width = NARROW if across == 1 else WIDE
        size = (width, down * (width / across * (0.95 if chart.chart == "heatmap" else 0.75)))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(down, across, squeeze=False).ravel()
        for empty in set(range(len(axes))) - set(places):
            axes[empty].set_visible(False)
        image, scale = None, _scale(shown)
        # A curve looks alike in all panels, also where others are missing.
        curves = dict.fromkeys(name for panel in shown for name in panel.curves)
        own = _own(results.recipe)
        curves = dict.fromkeys([*(name for name in curves if name in own), *curves])
        looks = {name: k for k, name in enumerate(curves)}
        labels = [_ylabel(chart, panel, len({one.y for one in shown}) > 1) for panel in shown]
        for k, (panel, place) in enumerate(zip(shown, places, strict=True)):
            axis = axes[place]
            axis.set_title(panel.title)
            if place + across not in places:  # nothing below
                axis.set_xlabel(chart.xlabel or chart.x)
            if place % across == 0 or labels[k] != labels[k - 1]:
                axis.set_ylabel(textwrap.fill(labels[k], LETTERS_UP))
            if panel.matrix is not None:
                image = axis.imshow(panel.matrix, cmap="cividis", interpolation="nearest", **scale)
                for side in (axis.xaxis, axis.yaxis):
                    side.set_major_locator(MaxNLocator(4, integer=True))
            elif chart.chart == "bars":
                _bars(axis, panel, looks)
            else:
                _lines(axis, panel, looks, own, many=chart.series == "clients")
                if chart.log:
                    axis.set_yscale("log")
                if all(_is_whole(x) for curve in panel.curves.values() for x in curve.points):
                    most = int(2.5 * width / across)
                    ticks = MaxNLocator(most, steps=(1, 2, 2.5, 5, 10), integer=True, min_n_ticks=1)
                    axis.xaxis.set_major_locator(ticks)
        if image is not None:
            figure.colorbar(image, ax=list(axes), shrink=0.8, label=shown[0].y.replace("_", " "))
        _legend(figure, list(axes), named=len(results.recipe.rows) > 1)
        seeds = {panel.seed for panel in shown if panel.seed is not None}
        of_seeds = f" (seed {', '.join(map(str, sorted(seeds)))})" if seeds else ""
        figure.suptitle(_title(results) + of_seeds + _spread(chart, shown), fontsize=8)
    return figure


def _own(recipe: Recipe) -> set[str]:
    """The curves of the paper's own method, where a figure compares it with others."""
    names = {r.label for r in recipe.rows if r.method == recipe.paper}
    return names if len(names) < len(recipe.rows) else set()


def _spread(chart: Chart, shown: Sequence[Panel]) -> str:
    """What bands and error bars are."""
    each = [v for panel in shown for curve in panel.curves.values() for v in curve.points.values()]
    seeds = max(map(len, each), default=0)
    if seeds < 2 or chart.series == "clients":
        return ""
    return f"; {'error bars' if chart.chart == 'bars' else 'bands'}: ± 1 sd over {seeds} seeds"


def _across(chart: Chart, shown: Sequence[Panel]) -> int:
    """Panels side by side: where there are several y, or rows of matrices, a row for each."""
    most = 5 if chart.chart == "heatmap" else 3
    titles = len({panel.title for panel in shown})
    several = len({(panel.y, panel.row) for panel in shown}) > 1
    return titles if several and titles <= most else min(len(shown), 4, most)


def _places(shown: Sequence[Panel], across: int) -> list[int]:
    """Where each panel lies, counted along the rows: matrices under those of the same column."""
    titles, rows = ({k: n for n, k in enumerate(dict.fromkeys(of))} for of in (
        (panel.title for panel in shown), (panel.row for panel in shown)
    ))  # fmt: skip
    if len(rows) < 2 or len(titles) > across:
        return list(range(len(shown)))
    return [rows[panel.row] * across + titles[panel.title] for panel in shown]


def _is_whole(x: Any) -> bool:
    return isinstance(x, int | float) and float(x).is_integer()


def _scale(shown: Sequence[Panel]) -> dict[str, float]:
    """One scale of colours for all matrices."""
    known = [panel.matrix for panel in shown if panel.matrix is not None]
    if not known:
        return {}
    low, high = (min(float(np.nanmin(m)) for m in known), max(float(np.nanmax(m)) for m in known))
    return {"vmin": low, "vmax": high}


def _title(results: Results) -> str:
    recipe = results.recipe
    text = f"{PAPERS[recipe.paper]}, {recipe.title.partition(':')[0]}"
    return f"QUICK (shrunk settings): {text}" if results.quick else text


def _ylabel(chart: Chart, panel: Panel, several: bool) -> str:
    if panel.row:
        return f"{panel.row}: {chart.ylabel or NAMES.get(panel.y, panel.y)}"
    if chart.ylabel and not several:
        return chart.ylabel
    name = panel.y.partition(":")[0].removeprefix("measured.").removeprefix("clients.")
    counted = unit(panel.y)
    return NAMES.get(name, name.replace("_", " ") + (f" ({counted})" if counted else ""))


def _lines(
    axis: Any, panel: Panel, looks: Mapping[str, int], own: Collection[str], many: bool
) -> None:
    """Curves with bands; the paper's own method is drawn thick and above the others."""
    kinds = list(dict.fromkeys(curve.label for curve in panel.curves.values()))
    for name, curve in panel.curves.items():
        k = kinds.index(curve.label) if many else looks[name]
        x, mean, spread = curve.summary()
        colour = COLOURS[k % len(COLOURS)]
        if many:
            dash = DASHES[k % len(DASHES)]
            axis.plot(x, mean, dash, linewidth=0.6, alpha=0.7, color=colour, label=curve.label)
            continue
        marker = MARKERS[k % len(MARKERS)] if len(x) <= 12 else ""
        dash = DASHES[k % len(DASHES)]
        axis.plot(
            x, mean, dash, color=colour, marker=marker, markersize=3, label=curve.label,
            linewidth=2.0 if name in own else 1.0, zorder=3 if name in own else 2,
        )  # fmt: skip
        low = [m - s for m, s in zip(mean, spread, strict=True)]
        high = [m + s for m, s in zip(mean, spread, strict=True)]
        axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        if len(x) == 1:  # a band of no width
            axis.errorbar(x, mean, spread, color=colour, linewidth=0.7)
        if curve.paper:
            at = list(curve.paper)
            axis.plot(
                at, [curve.paper[p] for p in at], "d", color=colour, markersize=4.5,
                markerfacecolor="none", linestyle="none", clip_on=False, zorder=4,
                label="paper",
            )  # fmt: skip
    axis.grid(alpha=0.25, linewidth=0.5)


def _bars(axis: Any, panel: Panel, looks: Mapping[str, int]) -> None:
    names = list(dict.fromkeys(x for curve in panel.curves.values() for x in curve.summary()[0]))
    width = 0.8 / max(1, len(panel.curves))
    for beside, (name, curve) in enumerate(panel.curves.items()):
        k = looks[name]
        x, mean, spread = curve.summary()
        at = [names.index(one) + (beside + 0.5) * width - 0.4 for one in x]
        hatch = ("", "//", "..", "xx")[k % 4]
        axis.bar(
            at, mean, width, yerr=spread, color=COLOURS[k % len(COLOURS)], hatch=hatch,
            label=curve.label, error_kw={"linewidth": 0.7}, edgecolor="white", linewidth=0.3,
        )  # fmt: skip
        known = [(a, curve.paper[one]) for a, one in zip(at, x, strict=True) if one in curve.paper]
        if known:
            axis.plot(*zip(*known, strict=True), "kd", markerfacecolor="none", label="paper")
    short = all(len(str(name)) <= 3 for name in names)
    how: Any = {} if short else {"rotation": 30, "ha": "right"}
    axis.set_xticks(range(len(names)), [str(name) for name in names], **how)


def _legend(figure: Any, axes: Sequence[Any], named: bool) -> None:
    """One legend for all panels, below them; of a single curve only where there could be more."""
    found: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if len(found) > (0 if named else 1):
        across = 2 if len(axes) == 1 else 4
        figure.legend(
            list(found.values()), list(found), loc="outside lower center", ncols=across,
            frameon=False,
        )  # fmt: skip
