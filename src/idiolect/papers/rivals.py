"""Which rows of a table lie above the method that the paper calls the best."""

import statistics
from collections.abc import Mapping

from idiolect.papers.numbers import unit
from idiolect.papers.recipe import Recipe

Values = Mapping[tuple[str, str, str], Mapping[int, float]]  # row, column, metric -> seed -> value


def lines(recipe: Recipe, values: Values) -> list[str]:
    """One line per winner that is not the best in our runs: the rows above it, each with its mean
    lead over the seeds of both. Rows that are not in the paper count too, other settings of the
    winner do not."""
    found: dict[str, dict[str, list[str]]] = {}
    for (winner, column), among in _winners(recipe).items():
        own = recipe.row(winner)
        for rival in recipe.rows:
            other = rival.id in among if among else not rival.extra or rival.method != own.method
            if rival.id == winner or not other or not recipe.has_cell(rival.id, column):
                continue
            metric = recipe.metric_of(winner, column)
            ours, theirs = (values.get((r, column, metric), {}) for r in (winner, rival.id))
            leads = [theirs[seed] - ours[seed] for seed in set(ours) & set(theirs)]
            if len(leads) < 2 or statistics.fmean(leads) <= 0:
                continue
            label = recipe.column(column).label or column
            ahead = sum(lead > 0 for lead in leads)
            told = f"{label} by {statistics.fmean(leads):.2f} ({ahead} of {len(leads)} seeds)"
            found.setdefault(winner, {}).setdefault(rival.id, []).append(told)
    return [_line(recipe, winner, rivals) for winner, rivals in found.items()]


def _winners(recipe: Recipe) -> dict[tuple[str, str], tuple[str, ...]]:
    """Row and column of every cell that a claim calls the best by the number the table shows, and
    the rivals it names; none: all."""
    return {
        (row, column): claim.among
        for claim in recipe.claims
        if claim.kind == "best" and not claim.metric and not claim.lower
        for row in claim.about
        for column in recipe.columns_of(claim)
        if recipe.has_cell(row, column) and unit(recipe.metric_of(row, column)) == "%"
    }


def _line(recipe: Recipe, winner: str, rivals: Mapping[str, list[str]]) -> str:
    name = recipe.row(winner).label or winner
    each = []
    for row, places in rivals.items():
        one = recipe.row(row)
        each.append(f"{one.label or one.id}{' *' if one.extra else ''} in {', '.join(places)}")
    return f"Above {name} (mean lead in points), against the paper: {'; '.join(each)}."
