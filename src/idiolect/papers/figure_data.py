"""What a figure shows, before it is drawn: panels of curves, bars or matrices, from the records."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from idiolect.papers import cell_list
from idiolect.papers.cells import Cell
from idiolect.papers.numbers import Moment
from idiolect.papers.recipe import Chart, Recipe
from idiolect.papers.recipe_checks import as_tuple
from idiolect.papers.results import Results
from idiolect.papers.run_record import Record
from idiolect.papers.tuned_rows import tuned_cells
from idiolect.simulation.schedule import Stragglers


@dataclass
class Curve:
    """Points over x: one value per seed in each."""

    label: str
    points: dict[Any, list[float]] = field(default_factory=dict)
    paper: dict[Any, float] = field(default_factory=dict)

    def summary(self) -> tuple[list[Any], list[float], list[float]]:
        """x, mean and standard deviation over seeds."""
        xs = sorted(self.points) if all(_is_number(x) for x in self.points) else list(self.points)
        means = [statistics.fmean(self.points[x]) for x in xs]
        spreads = [statistics.stdev(v) if len(v := self.points[x]) > 1 else 0.0 for x in xs]
        return xs, means, spreads

    def keep_common(self) -> None:
        """Only points that every seed has: where one ends or was tested more rarely, the mean of
        the others would jump."""
        most = max(map(len, self.points.values()), default=0)
        self.points = {x: values for x, values in self.points.items() if len(values) == most}


@dataclass
class Panel:
    """One pair of axes."""

    title: str
    y: str
    curves: dict[str, Curve] = field(default_factory=dict)
    matrix: np.ndarray | None = None
    seed: int | None = None  # of a matrix or of single clients: a mean would mix what is not alike
    row: str = ""  # of the recipe, beside a matrix

    def curve(self, name: str, label: str = "") -> Curve:
        return self.curves.setdefault(name, Curve(label or name))


def panels(results: Results) -> list[Panel]:
    """All panels of a figure for which something was run, in the recipe's order."""
    recipe = results.recipe
    chart = recipe.shown
    if chart is None:
        return []
    done = cell_list.finished(results, tuned_cells(results), drawn=True)
    if chart.chart == "heatmap":
        return _matrices(results, chart, done)
    if chart.x == "round":
        return _over_rounds(results, chart, done)
    if chart.x == "client":
        return _over_clients(results, chart, done)
    return _over_settings(results, chart, done)


def _over_rounds(
    results: Results, chart: Chart, done: Sequence[tuple[Cell, Record]]
) -> list[Panel]:
    recipe = results.recipe
    made: dict[tuple[str, str], Panel] = {}
    for cell, _ in done:
        own = recipe.row(cell.row).metric or recipe.column(cell.column).metric
        found = results.series(cell)
        for y in (own,) if own else as_tuple(chart.y):
            name, _, part = y.partition(":")
            shown = _chosen(found.get(name, []), part)
            axis = as_tuple(chart.y)[0] if own else y
            title = _panel(recipe, chart, cell)
            panel = made.setdefault((title, axis), Panel(title, axis))
            if chart.series == "clients":
                panel.seed = cell.seed if panel.seed is None else panel.seed
                shown = shown if cell.seed == panel.seed else []
            for moment in shown if chart.series == "clients" else _means(shown):
                label = _label(recipe, chart, cell)
                names = _client(cell, moment) if chart.series == "clients" else (label,)
                panel.curve(*names).points.setdefault(moment.round, []).append(moment.value)
    for panel in made.values():
        for curve in panel.curves.values():
            curve.keep_common()
    return sorted(made.values(), key=lambda panel: as_tuple(chart.y).index(panel.y))


def _over_clients(
    results: Results, chart: Chart, done: Sequence[tuple[Cell, Record]]
) -> list[Panel]:
    """Every client's value in the last round, of the first seed whose clients were recorded: client
    3 holds other data in every seed."""
    made: dict[str, Panel] = {}
    [y] = as_tuple(chart.y)
    for cell, _ in done:
        moments = results.series(cell).get(y, [])
        last = max((moment.round for moment in moments), default=0)
        if not moments:
            continue
        title = _panel(results.recipe, chart, cell)
        panel = made.setdefault(title, Panel(title, y, seed=cell.seed))
        for moment in (
            m for m in moments if m.round == last and m.item and cell.seed == panel.seed
        ):
            curve = panel.curve(_label(results.recipe, chart, cell))
            curve.points.setdefault(int(moment.item) + 1, []).append(moment.value)
    return list(made.values())


def _over_settings(
    results: Results, chart: Chart, done: Sequence[tuple[Cell, Record]]
) -> list[Panel]:
    recipe = results.recipe
    made: dict[str, Panel] = {}
    for cell, record in done:
        value = record.shown(recipe.metric_of(cell.row, cell.column))
        if value is None:
            continue
        title = _panel(recipe, chart, cell)
        panel = made.setdefault(title, Panel(title, recipe.metric_of(cell.row, cell.column)))
        x = _place(recipe, chart, cell)
        curve = panel.curve(_label(recipe, chart, cell))
        curve.points.setdefault(x, []).append(value)
        paper = recipe.paper_value(cell.row, cell.column)
        if paper is not None:
            curve.paper[x] = paper[0]
    return list(made.values())


def _matrices(results: Results, chart: Chart, done: Sequence[tuple[Cell, Record]]) -> list[Panel]:
    """One matrix per cell, of its first seed: a mean over seeds would blur what is chosen."""
    recipe = results.recipe
    made: dict[tuple[str, str], Panel] = {}
    for cell, _ in done:
        row, column = recipe.row(cell.row), recipe.column(cell.column)
        name = as_tuple(chart.y)[0]
        moments = [m for m in results.series(cell).get(name, []) if "," in m.item]
        if (row.id, column.id) in made or not moments:
            continue
        part = recipe.metric_of(cell.row, cell.column).partition(":")[2]
        last = max(m.round for m in moments)
        chosen = [m for m in moments if m.round == (int(part) if part.isdigit() else last)]
        places = [tuple(map(int, m.item.split(","))) for m in chosen]
        if not chosen:
            continue
        shape = tuple(max(at) + 1 for at in zip(*places, strict=True))
        matrix = np.full(shape, np.nan)
        for at, moment in zip(places, chosen, strict=True):
            matrix[at] = moment.value
        panel = Panel(column.label, name, matrix=matrix, seed=cell.seed)
        panel.row = row.label if len(recipe.rows) > 1 else ""
        made[row.id, column.id] = panel
    return list(made.values())


def _panel(recipe: Recipe, chart: Chart, cell: Cell) -> str:
    row, column = recipe.row(cell.row), recipe.column(cell.column)
    if row.panel:
        return row.panel
    if chart.panels == "rows":
        return row.label
    if chart.panels == "columns":
        return column.label
    return ""


def _label(recipe: Recipe, chart: Chart, cell: Cell) -> str:
    """What a curve is called: by the rows or columns, with both where the panel tells neither."""
    row, column = recipe.row(cell.row), recipe.column(cell.column)
    names = [row.label, column.label]
    if chart.series == "columns":
        names.reverse()
    free = chart.x == "round" and chart.panels == "none" and not row.panel
    several = len(recipe.columns if chart.series == "rows" else recipe.rows) > 1
    return ", ".join(names) if free and several else names[0]


def _place(recipe: Recipe, chart: Chart, cell: Cell) -> Any:
    if chart.x == "column":
        return recipe.column(cell.column).label
    value: Any = cell.config
    for key in chart.x.split("."):
        value = value[key] if isinstance(value, dict) and key in value else None
    return value if value is not None else cell.column


def _client(cell: Cell, moment: Moment) -> tuple[str, str]:
    """What a client's curve is, and what it is called: by whether it is late, where some are."""
    late = Stragglers.of(cell.config.get("stragglers"))
    periods = late.periods or (1,) * late.count  # of the first clients
    here = int(moment.item)
    kind = "late" if here < len(periods) and periods[here] else "always on time"
    return f"client {moment.item}", kind if late else "client"


def _means(moments: Sequence[Moment]) -> list[Moment]:
    by_round: dict[int, list[float]] = {}
    for moment in moments:
        by_round.setdefault(moment.round, []).append(moment.value)
    return [Moment(t, "", statistics.fmean(values)) for t, values in by_round.items()]


def _chosen(moments: Sequence[Moment], part: str) -> list[Moment]:
    """The item a metric names, as in `gradient_similarity:head`; all where it names a round."""
    items = {moment.item for moment in moments}
    return [m for m in moments if m.item == part] if part in items else list(moments)


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)
