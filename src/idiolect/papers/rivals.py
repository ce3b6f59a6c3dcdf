"""Which rows of a table lie above the method that the paper calls the best."""

import statistics
from collections.abc import Mapping

from idiolect.papers.numbers import unit
from idiolect.papers.recipe import Claim, Recipe
from idiolect.papers.verdicts import Values


def lines(recipe: Recipe, values: Values) -> list[str]:
    """One line per winner that is not the best in our runs: the rows above it, each with its mean
    lead over the seeds of both. Rows that are not in the paper count too, other settings of the
    winner do not."""
    found: dict[str, dict[str, dict[str, str]]] = {}  # winner, rival, column
    for winner, column, claim in _winners(recipe):
        own = recipe.row(winner)
        for rival in recipe.rows:
            other = not rival.extra or rival.method != own.method
            other = rival.id in claim.among if claim.among else other
            if rival.id in claim.about or not other or not recipe.has_cell(rival.id, column):
                continue
            metric = recipe.metric_of(winner, column)
            ours, theirs = (values.get((r, column, metric), {}) for r in (winner, rival.id))
            leads = [theirs[seed] - ours[seed] for seed in set(ours) & set(theirs)]
            if len(leads) < 2 or statistics.fmean(leads) <= 0:
                continue
            label = recipe.column(column).label
            ahead = sum(lead > 0 for lead in leads)
            told = f"{label} by {statistics.fmean(leads):.2f} ({ahead} of {len(leads)} seeds)"
            found.setdefault(winner, {}).setdefault(rival.id, {})[column] = told
    return [_line(recipe, winner, rivals) for winner, rivals in found.items()]


def _winners(recipe: Recipe) -> list[tuple[str, str, Claim]]:
    """Row and column of every cell that a claim calls the best by the number the table shows, and
    the claim."""
    return [
        (row, column, claim)
        for claim in recipe.claims
        if claim.kind == "best" and not claim.metric and not claim.lower
        for row in claim.about
        for column in recipe.columns_of(claim)
        if recipe.has_cell(row, column) and unit(recipe.metric_of(row, column)) == "%"
    ]


def _line(recipe: Recipe, winner: str, rivals: Mapping[str, Mapping[str, str]]) -> str:
    name = recipe.row(winner).label
    each = [f"{recipe.row(r).heading} in {', '.join(at.values())}" for r, at in rivals.items()]
    return f"Above {name} (mean lead in points), against the paper: {'; '.join(each)}."
