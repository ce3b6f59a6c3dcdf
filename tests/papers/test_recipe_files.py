"""The recipe files: every cell resolves, and the papers' own numbers fulfil the claims."""

import re
from functools import cache
from itertools import pairwise

import pytest

from idiolect.papers import recipe as recipes
from idiolect.papers.cells import cells, settings_digest, trials
from idiolect.papers.numbers import NAMED, SERIES
from idiolect.papers.recipe import Claim, Recipe
from idiolect.papers.special_numbers import SPECIAL
from idiolect.runs.config import Config

TABLES_AND_FIGURES = {
    "spfl": "table1 table5 table6 table7 table8 figure4 figure5 figure6",
    "plga": "table2 figure2",
    "feddwa": "table1 table2 table3 table4 table5 table6 "
    "figure1 figure2 figure3 figure4 figure5 figure6 figure7 figure8",
    "pflego": "table1 table2 table6 "
    "figure2 figure3 figure4 figure5 figure8 figure9 figure10 figure11 figure12",
    "fedas": "table2 table3 table4 figure3 figure4 figure5 figure6 figure7",
}
NAMES = [f"{paper}-{one}" for paper, all_ in TABLES_AND_FIGURES.items() for one in all_.split()]
NOT_ACCURACIES = {
    "bytes_per_client_round": 1000,
    "flops_per_round": 1e13,
    "clients": 100,
    "classes_per_client": 100,
    "train_samples": 10_000,
    "test_samples": 10_000,
}
IN_EVERY_SUMMARY = {
    "accuracy.best.pooled",
    "accuracy_after.best.pooled",
    "accuracy_global.last.mean",  # of a method with one model for all
}
MEASURED_OR_LOGGED = {
    "measured.train_loss",
    "measured.train_loss_after",
    "train_accuracy",
    "train_accuracy_after",
    "accuracy.pooled",  # a series
    "guidance_accuracy",
    "gradient_similarity",
    "clients.fisher_trace",
    "clients.accuracy_before",
    "aggregation_weight",
}
SOURCE = re.compile(
    r"\((Sec\. |Table |Figure |Appendix |Abstract|not in the paper)|not in the paper"
)
read = cache(recipes.read)


def test_every_table_and_figure_of_the_papers_has_its_file():
    assert sorted(NAMES) == recipes.names()


def test_the_claims_are_many_and_say_where_the_paper_makes_them():
    claims = [(name, claim) for name in NAMES for claim in read(name).claims]
    assert len(claims) >= 80
    assert not [(name, claim.id) for name, claim in claims if not SOURCE.search(claim.says)]


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_cell_makes_a_valid_config(name, quick):
    recipe = read(name)
    made = cells(recipe, seeds=[0], quick=quick)
    assert made
    assert {cell.broken for cell in made if not cell.waiting} == {""}
    tuned = {(cell.row, cell.column) for cell in made if cell.waiting}
    tried = trials(recipe, quick)
    assert {(cell.row, cell.column) for cell in tried} == tuned
    assert not any(cell.broken for cell in tried)


@pytest.mark.parametrize("name", NAMES)
def test_quick_is_much_smaller_than_the_whole(name):
    recipe = read(name)
    assert recipe.quick, "does not say how --quick shrinks it"
    whole, quick = _runs(recipe, False), _runs(recipe, True)
    assert len(quick) <= 20
    for config in quick.values():
        assert config["rounds"] <= 60
        assert (
            config["data"]["sample"] or config["data"]["name"] == "omniglot" or not _results(recipe)
        )
    if _results(recipe):
        assert 4 * _rounds(quick) < _rounds(whole)
    assert len(recipe.size.seeds) >= 2 or not _results(recipe)


def _runs(recipe: Recipe, quick: bool) -> dict[str, Config]:
    """The runs of one seed by their settings: cells that share a run count once."""
    made = [*cells(recipe, seeds=[0], quick=quick), *trials(recipe, quick)]
    return {settings_digest(cell.config): cell.config for cell in made}


def _rounds(runs: dict[str, Config]) -> int:
    return sum(config["rounds"] for config in runs.values())


def _results(recipe: Recipe) -> bool:
    """Whether it shows results of training, not settings, traffic or work."""
    return recipe.metric not in NOT_ACCURACIES


@pytest.mark.parametrize("name", NAMES)
def test_paper_values_are_plausible(name):
    recipe = read(name)
    for row, values in recipe.paper_values.items():
        for column in values:
            mean, spread = recipe.paper_value(row, column)
            most = NOT_ACCURACIES.get(recipe.metric_of(row, column), 100)
            assert 1 < mean <= most, f"{row}/{column}: {mean}"
            assert spread is None or 0 < spread < 5, f"{row}/{column}: ± {spread}"


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_own_numbers_fulfil_its_claims(name):
    """A claim that the printed numbers contradict is a slip in the file, or needs other words."""
    recipe = read(name)
    wrong = {claim.id: found for claim in recipe.claims if (found := _contradicted(recipe, claim))}
    assert not wrong


def _contradicted(recipe: Recipe, claim: Claim) -> list[str]:
    if claim.metric or claim.kind == "near":  # no printed number of that kind; printed by itself
        return []
    columns = claim.columns or tuple(c.id for c in recipe.columns if not c.extra)
    sign = -1 if claim.lower else 1
    if claim.kind == "trend":
        lines = [(row, [_printed(recipe, row, c) for c in claim.along]) for row in claim.about]
        return [row for row, values in lines if not _moves(claim, _known(values))]
    if claim.kind == "order":
        lines = [
            (column, [_printed(recipe, row, column) for row in claim.rows]) for column in columns
        ]
        return [c for c, v in lines if not _falls([sign * x for x in _known(v)])]
    rivals = claim.beaten or claim.among or tuple(row.id for row in recipe.rows if not row.extra)
    wrong = []
    for column in columns:
        for row in claim.about:
            mine = _printed(recipe, row, column)
            if mine is None:
                continue
            if claim.kind in ("above", "below"):
                fine = (mine > claim.value) == (claim.kind == "above")
                wrong += [] if fine else [f"{row}/{column}"]
                continue
            for rival in rivals:
                other = _printed(recipe, rival, column)
                if rival != row and other is not None and not _agrees(claim, sign, mine, other):
                    wrong.append(f"{row} and {rival} in {column}: {mine} and {other}")
    return wrong


def _agrees(claim: Claim, sign: int, mine: float, other: float) -> bool:
    if claim.kind == "within":
        return abs(mine - other) <= claim.by + 1e-9
    if claim.kind == "ratio":
        return abs(mine / other - claim.ratio) <= claim.within
    return sign * (mine - other) >= (claim.by if claim.kind == "beats" else 0)


def _moves(claim: Claim, values: list[float]) -> bool:
    if claim.direction == "flat":
        return not values or max(values) - min(values) <= claim.by + 1e-9
    ordered = values if claim.direction == "down" else values[::-1]
    return _falls(ordered) and (not values or ordered[0] - ordered[-1] >= claim.by)


def _falls(values: list[float]) -> bool:
    return all(a >= b for a, b in pairwise(values))


def _known(values: list[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _printed(recipe: Recipe, row: str, column: str) -> float | None:
    found = recipe.paper_value(row, column) if recipe.has_cell(row, column) else None
    return None if found is None else found[0]


@pytest.mark.parametrize("name", NAMES)
def test_every_number_and_series_exists(name):
    """A wrong name would be found only when the run is done."""
    recipe = read(name)
    known = {*NAMED, *SPECIAL, *SERIES, *MEASURED_OR_LOGGED, *IN_EVERY_SUMMARY}
    for row in recipe.rows:
        for column in (c for c in recipe.columns if recipe.has_cell(row.id, c.id)):
            wanted = recipe.numbers_of(row.id, column.id) | set(recipe.numbers)
            wanted |= set(recipe.series_of(row.id, column.id))
            assert {one.partition(":")[0] for one in wanted} <= known
