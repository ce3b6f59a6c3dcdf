"""What a recipe file must be: known names, ids, numbers where numbers are meant; else one line."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from idiolect.core.text import one_line, shortened
from idiolect.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from idiolect.papers.recipe import Claim, Recipe, RecipeRow

MOST_POINTS = 100  # of a grid
IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


def check_texts(value: Any) -> None:
    """Words that a terminal would obey, or that end a line, have no place in tables."""
    if isinstance(value, Mapping):
        check_texts([*value.keys(), *value.values()])
    elif isinstance(value, list):
        for one in value:
            check_texts(one)
    elif isinstance(value, str) and one_line(value) != value:
        raise UserError(f"'{shortened(value)}' holds a control character or line break; remove it")


def check_names(recipe: "Recipe") -> None:
    rows, columns = [row.id for row in recipe.rows], [column.id for column in recipe.columns]
    _known(recipe.first, columns, "column in first")
    _known(recipe.size.rows, rows, "row in quick")
    _known(recipe.size.columns, columns, "column in quick")
    for row in recipe.rows:
        if not row.method:
            raise UserError(f"row {row.id} has no method")
        _known(row.columns or (), columns, f"column of row {row.id}")
    for column in recipe.columns:
        _known(column.rows or (), rows, f"row of column {column.id}")
    for cell in recipe.cells:
        _known(as_tuple(cell.row), rows, "row in cells")
        _known(as_tuple(cell.column), columns, "column in cells")


def check_tuned(row: "RecipeRow") -> None:
    what = f"row {row.id}: tune"
    for key, values in row.tune.items():
        if not str(key).startswith("method.") or key == "method.name":
            raise UserError(f"{what} takes settings of its method such as method.lr, got '{key}'")
        if not isinstance(values, list) or not values:
            raise UserError(f"{what} {key} must be a list of values such as [0.01, 0.1]")
        if any(value in values[:k] for k, value in enumerate(values)):
            raise UserError(f"{what} {key} has a value twice")
    count = math.prod(len(values) for values in row.tune.values())
    if row.tune and not 2 <= count <= MOST_POINTS:
        raise UserError(f"{what} has {count} points to choose from; give 2 to {MOST_POINTS}")
    if row.tune and not row.extra:
        raise UserError(f"row {row.id} is tuned, as no row of the paper is; add extra: true")


def check_paper_values(recipe: "Recipe") -> None:
    rows, columns = [row.id for row in recipe.rows], [column.id for column in recipe.columns]
    _known(recipe.paper_values, rows, "row in paper_values")
    for row, values in recipe.paper_values.items():
        if not isinstance(values, Mapping):
            raise UserError(f"paper_values.{row} must be a section of columns")
        _known(values, columns, f"column in paper_values.{row}")
        for column, value in values.items():
            pair = value if isinstance(value, list) and len(value) == 2 else [value]
            if not all(isinstance(n, int | float) for n in pair):
                raise UserError(
                    f"paper_values.{row}.{column} must be a number or [mean, std], got {value!r}"
                )
            if not recipe.has_cell(row, column):
                raise UserError(f"paper_values.{row}.{column}: row {row} has no such column")


# Of each kind of claim: what it needs, and what else has an effect.
ABOUT_ANY = ("id", "says", "kind", "columns", "metric")
CLAIM_KEYS = {
    "best": (("row",), ("among", "lower")),
    "beats": (("row", "over"), ("by", "lower")),
    "order": (("rows",), ("lower",)),
    "within": (("row", "over", "by"), ()),
    "ratio": (("row", "over", "within"), ("ratio",)),
    "trend": (("along",), ("row", "direction", "steps", "by")),
    "near": (("row", "within"), ()),
    "above": (("row", "value"), ()),
    "below": (("row", "value"), ()),
}


def check_claim(recipe: "Recipe", claim: "Claim") -> None:
    rows, columns = [row.id for row in recipe.rows], [column.id for column in recipe.columns]
    what = f"claim {claim.id}"
    if not claim.says:
        raise UserError(f"{what} says nothing; write `says: …`")
    needed, free = CLAIM_KEYS[claim.kind]
    for key in (*needed, *(("by",) if claim.direction == "flat" else ())):
        if getattr(claim, key) in ((), None) or (key == "by" and claim.by <= 0):
            raise UserError(f"{what}: kind {claim.kind} needs {key}")
    for known in fields(claim):
        unused = known.name not in (*ABOUT_ANY, *needed, *free)
        if unused and getattr(claim, known.name) != known.default:
            raise UserError(f"{what}: kind {claim.kind} takes no {known.name}")
    _known((*claim.about, *claim.beaten, *claim.rows, *claim.among), rows, f"row in {what}")
    _known(claim.columns, columns, f"column in {what}")
    if claim.kind == "trend":
        over_columns = set(claim.along) <= set(columns)
        if len(claim.along) < 2 or not (over_columns or set(claim.along) <= set(rows)):
            raise UserError(f"{what}: along must be two or more columns, or two or more rows")
        if over_columns and not claim.about:
            raise UserError(f"{what}: a trend along columns needs row")
    if claim.kind == "near":
        for row in claim.about:
            if not recipe.paper_values.get(row):
                raise UserError(f"{what}: the paper prints no number for {row}")


def check_ids(what: str, ids: Sequence[str]) -> None:
    for one in ids:
        if not IDENTIFIER.fullmatch(one):
            raise UserError(f"{what}: '{one}' is no id; use letters, digits, _ . + -")
        if ids.count(one) > 1:
            raise UserError(f"{what}: the id {one} is there twice")


def _known(used: Iterable[str], known: Sequence[str], what: str) -> None:
    for one in used:
        if one not in known:
            raise did_you_mean(one, known, what)


def as_tuple(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value
