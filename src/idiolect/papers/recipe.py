"""A recipe: one table or figure of a paper as a YAML file, read and checked (docs/recipes.md)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from idiolect.core.fields import Checked, hyper, make
from idiolect.errors import UserError, did_you_mean
from idiolect.papers.recipe_checks import (
    as_tuple,
    check_claim,
    check_ids,
    check_names,
    check_paper_values,
    check_texts,
    check_tuned,
)
from idiolect.runs.config import read_yaml
from idiolect.runs.trials import points

FOLDER = Path(__file__).parent / "recipes"
PAPERS = {
    "spfl": "SPFL",
    "plga": "PLGA",
    "feddwa": "FedDWA",
    "pflego": "PFLEGO",
    "fedas": "FedAS",
}


@dataclass(frozen=True)
class Labelled(Checked):
    """A row or column."""

    id: str = hyper("", "short name")
    label: str = hyper("", "heading; the id if not given")
    set: dict = hyper({}, "settings, dotted or nested")
    extra: bool = hyper(False, "not in the paper")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "label", self.label or self.id)

    @property
    def heading(self) -> str:
        """In a table, with a mark where it is not in the paper."""
        return self.label + (" *" if self.extra else "")


@dataclass(frozen=True)
class RecipeColumn(Labelled):
    """A column of the table, or a point on the x axis: an override of the base settings."""

    metric: str | None = hyper(None, "number it shows; the recipe's if not given")
    rows: tuple[str, ...] | None = hyper(None, "rows that have it; all if not given")


@dataclass(frozen=True)
class RecipeRow(Labelled):
    """A row of the table, or a line of the figure: a method and its settings."""

    method: str = hyper("", "method")
    columns: tuple[str, ...] | None = hyper(None, "columns it is run in; all if not given")
    metric: str | None = hyper(None, "number it shows; the column's or recipe's if not given")
    panel: str = hyper("", "figure: panel it is drawn in")
    tune: dict = hyper({}, "values of the method's settings to choose from on validation samples")

    @property
    def points(self) -> list[dict[str, Any]]:
        """The values of a tuned row that are tried."""
        return points(self.tune) if self.tune else []


@dataclass(frozen=True)
class CellSettings(Checked):
    """Settings of single cells, where they depend on row and column."""

    row: str | tuple[str, ...] = hyper((), "row or rows")
    column: str | tuple[str, ...] = hyper((), "column or columns")
    set: dict = hyper({}, "settings, dotted or nested")


ClaimKind = Literal[
    "best", "beats", "order", "within", "ratio", "trend", "near", "above", "below"
]  # fmt: skip


@dataclass(frozen=True)
class Claim(Checked):
    """A sentence of the paper that numbers decide."""

    id: str = hyper("", "short name")
    says: str = hyper("", "the claim in words")
    kind: ClaimKind = hyper("best", "how it is decided")
    row: str | tuple[str, ...] = hyper((), "row or rows it is about")
    over: str | tuple[str, ...] = hyper((), "beats: the row or rows that are beaten")
    rows: tuple[str, ...] = hyper((), "order: best first")
    among: tuple[str, ...] = hyper((), "best: the rivals; all rows of the paper if not given")
    lower: bool = hyper(False, "best, beats, order: lower is better")
    ratio: float = hyper(1.0, "ratio: number of row / number of over")
    along: tuple[str, ...] = hyper((), "trend: columns (or rows) in order")
    direction: Literal["up", "down", "flat"] = hyper("up", "trend: where to")
    steps: bool = hyper(False, "trend: every step, not the line through all places")
    by: float = hyper(0.0, "beats, trend: by more than this; within, flat: at most this")
    within: float | None = hyper(None, "near, ratio: largest distance", min=0)
    value: float | None = hyper(None, "above, below: the constant")
    columns: tuple[str, ...] = hyper((), "columns it is about; all if not given")
    metric: str | None = hyper(None, "number it is about; the cell's if not given")

    @property
    def about(self) -> tuple[str, ...]:
        return as_tuple(self.row)

    @property
    def beaten(self) -> tuple[str, ...]:
        return as_tuple(self.over)


@dataclass(frozen=True)
class QuickSize(Checked):
    """How --quick shrinks a recipe."""

    rounds: int | None = hyper(None, "rounds", min=1)
    seeds: tuple[int, ...] = hyper((0, 1), "seeds")
    set: dict = hyper({}, "settings put over those of every cell")
    columns: tuple[str, ...] = hyper((), "columns; all if not given")
    rows: tuple[str, ...] = hyper((), "rows; all if not given")


@dataclass(frozen=True)
class Chart(Checked):
    """What a figure shows."""

    chart: Literal["lines", "bars", "heatmap"] = hyper("lines", "kind of figure")
    x: str = hyper("round", "round, column, client, or a setting; heatmap: its word")
    y: str | tuple[str, ...] = hyper("accuracy", "series over rounds, a logged matrix (heatmap)")
    series: Literal["rows", "columns", "clients"] = hyper("rows", "what a line is")
    panels: Literal["none", "rows", "columns"] = hyper("none", "what a panel is")
    xlabel: str = hyper("", "x axis, with unit")
    ylabel: str = hyper("", "y axis, with unit")
    log: bool = hyper(False, "lines: y axis with powers of ten")


@dataclass(frozen=True)
class Recipe(Checked):
    """A table or figure of a paper."""

    name: str = hyper("", "the file's name")
    paper: str = hyper("", "spfl, plga, feddwa, pflego or fedas")
    kind: Literal["table", "figure"] = hyper("table", "table or figure")
    title: str = hyper("", "title")
    seeds: tuple[int, ...] = hyper((0, 1, 2), "seeds of the full size")
    tune_seeds: tuple[int, ...] = hyper((), "seeds of trials; those of the cells if not given")
    metric: str = hyper("protocol", "number of a cell")
    base: dict = hyper({}, "settings every cell starts from")
    columns: tuple[Any, ...] = hyper((), "columns")
    rows: tuple[Any, ...] = hyper((), "rows")
    cells: tuple[Any, ...] = hyper((), "settings of single cells")
    first: tuple[str, ...] = hyper((), "columns that are run before the others")
    series: tuple[str, ...] = hyper((), "series over rounds that are kept")
    numbers: tuple[str, ...] = hyper((), "numbers that are kept besides, for recipes of its runs")
    paper_values: dict = hyper({}, "the paper's numbers: row, column, number or [mean, std]")
    claims: tuple[Any, ...] = hyper((), "claims")
    quick: dict = hyper({}, "how --quick shrinks it")
    figure: dict = hyper({}, "what the figure shows")
    notes: tuple[str, ...] = hyper((), "what the paper leaves open, and what was chosen")
    file: str = field(default="", metadata={"doc": "", "bounds": {}})

    @property
    def size(self) -> QuickSize:
        return make(QuickSize, self.quick, "quick")

    @property
    def shown(self) -> Chart | None:
        return make(Chart, self.figure, "figure") if self.kind == "figure" else None

    def metric_of(self, row: str, column: str) -> str:
        """The number a cell shows."""
        return self.row(row).metric or self.column(column).metric or self.metric

    def numbers_of(self, row: str, column: str) -> set[str]:
        """The numbers that the table and the claims need of a cell."""
        claimed = {c.metric for c in self.claims if c.metric and (row, column) in self.places_of(c)}
        return {self.metric_of(row, column), *claimed}

    def series_of(self, row: str, column: str) -> tuple[str, ...]:
        """Series over rounds that are stored with a cell: those this recipe draws, and those that
        others which share its runs draw."""
        clients = as_tuple(self.shown.y) if self.shown and self.shown.x == "client" else ()
        return tuple(dict.fromkeys([*self.series, *clients, *self.drawn_of(row, column)]))

    def drawn_of(self, row: str, column: str) -> tuple[str, ...]:
        """Series over rounds that a cell of this recipe cannot do without."""
        chart = self.shown
        drawn: tuple[str, ...] = ()
        if chart and (chart.x == "round" or chart.chart == "heatmap"):
            own = self.row(row).metric or self.column(column).metric
            drawn = (own.partition(":")[0],) if own and chart.x == "round" else as_tuple(chart.y)
        return drawn

    def columns_of(self, claim: Claim) -> tuple[str, ...]:
        """The columns a claim is about: those it names, else all of the paper."""
        return claim.columns or tuple(column.id for column in self.columns if not column.extra)

    def is_along_columns(self, claim: Claim) -> bool:
        """Whether a trend goes from column to column, not from row to row."""
        return set(claim.along) <= {column.id for column in self.columns}

    def places_of(self, claim: Claim) -> set[tuple[str, str]]:
        """The (row, column) pairs whose numbers a claim rests on."""
        columns = self.columns_of(claim)
        rows: tuple[str, ...] = (*claim.about, *claim.beaten, *claim.rows, *claim.among)
        if claim.kind == "best" and not claim.among:
            rows = (*claim.about, *(row.id for row in self.rows if not row.extra))
        if claim.kind == "trend":
            if self.is_along_columns(claim):
                columns = claim.along
            else:
                rows = claim.along
        return {(row, column) for row in rows for column in columns if self.has_cell(row, column)}

    def shrunk(self) -> "Recipe":
        """The recipe with the cells of --quick only."""
        size = self.size
        rows = [r if r.id in (size.rows or [r.id]) else replace(r, columns=()) for r in self.rows]
        columns = [
            c if c.id in (size.columns or [c.id]) else replace(c, rows=()) for c in self.columns
        ]
        return replace(self, rows=tuple(rows), columns=tuple(columns))

    def row(self, name: str) -> RecipeRow:
        return next(one for one in self.rows if one.id == name)

    def column(self, name: str) -> RecipeColumn:
        return next(one for one in self.columns if one.id == name)

    def has_cell(self, row: str, column: str) -> bool:
        columns, rows = self.row(row).columns, self.column(column).rows
        return (columns is None or column in columns) and (rows is None or row in rows)

    def paper_value(self, row: str, column: str) -> tuple[float, float | None] | None:
        """The paper's mean and spread, where it prints them."""
        found = self.paper_values.get(row, {}).get(column)
        if found is None:
            return None
        mean, spread = found if isinstance(found, list | tuple) else (found, None)
        return float(mean), None if spread is None else float(spread)


def names() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def read(name: str) -> Recipe:
    """A recipe by its name, or one of your own by its file."""
    if name.endswith((".yaml", ".yml")):
        return read_file(Path(name).expanduser())
    if name not in names():
        raise did_you_mean(name, names(), "recipe")
    return read_file(FOLDER / f"{name}.yaml")


def read_file(file: Path) -> Recipe:
    """Read and check a recipe; the error names file, key and fix."""
    try:
        loaded = read_yaml(file)
        check_texts(loaded)
        return _checked({"name": file.stem, **loaded}, file)
    except UserError as error:
        raise UserError(f"{file.name}: {str(error).removeprefix(f'{file.name}: ')}") from None


def _checked(loaded: dict[str, Any], file: Path) -> Recipe:
    for key, kind in (("columns", RecipeColumn), ("rows", RecipeRow), ("claims", Claim)):
        sections = loaded.get(key) or []
        if not isinstance(sections, list) or not all(isinstance(s, Mapping) for s in sections):
            raise UserError(f"{key} must be a list of sections such as {{id: …}}")
        loaded[key] = tuple(make(kind, one, f"one of {key}") for one in sections)
        check_ids(key, [one.id for one in loaded[key]])
    loaded["cells"] = tuple(make(CellSettings, c, "cells") for c in loaded.get("cells") or ())
    recipe = make(Recipe, loaded, "a recipe")
    if recipe.name != file.stem:
        raise UserError(f"name is '{recipe.name}'; it must be the file's name, {file.stem}")
    if recipe.paper not in PAPERS:
        raise did_you_mean(recipe.paper, PAPERS, "paper")
    if not recipe.rows or not recipe.columns:
        raise UserError("rows and columns must not be empty")
    if bool(recipe.figure) != (recipe.kind == "figure"):
        raise UserError("kind: figure and the section figure belong together")
    check_names(recipe)
    check_paper_values(recipe)
    for row in recipe.rows:
        check_tuned(row)
    for claim in recipe.claims:
        check_claim(recipe, claim)
    _ = recipe.size, recipe.shown
    object.__setattr__(recipe, "file", str(file))
    return recipe
