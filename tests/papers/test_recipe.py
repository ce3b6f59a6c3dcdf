"""Recipe files are checked on reading, and those that come with the program are sound."""

import csv
import io
from typing import Any

import pytest
from rich.console import Console

from idiolect.errors import UserError
from idiolect.papers import recipe as recipes
from idiolect.papers.cells import WAITING, cells, trials
from idiolect.papers.paper_table import PaperTable, as_csv, latex, markdown, terminal
from tests.papers.tiny import TINY, tiny, written


def test_a_recipe_is_read() -> None:
    made = tiny()
    assert [row.id for row in made.rows] == ["fedavg", "local", "prox"]
    assert made.paper_value("fedavg", "even") == (90.0, 1.5)
    assert made.paper_value("fedavg", "skewed") == (80.0, None)
    assert made.paper_value("local", "even") is None
    assert made.has_cell("prox", "even") and not made.has_cell("prox", "skewed")


def tuned(tune: Any, **changes: Any) -> dict[str, Any]:
    row = {"id": "t", "method": "fedavg", "extra": True, "tune": tune}
    return {"rows": [*TINY["rows"], row | changes]}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"titel": "x"}, "did you mean 'title'"),
    ({"paper": "fedass"}, "did you mean 'fedas'"),
    ({"rows": []}, "must not be empty"),
    ({"rows": [{"id": "a b", "method": "fedavg"}]}, "is no id"),
    ({"rows": [{"id": "a", "method": "fedavg", "st": {}}]}, "did you mean 'set'"),
    ({"columns": [TINY["columns"][0]] * 2}, "is there twice"),
    ({"paper_values": {"fedavgg": {}}}, "did you mean 'fedavg'"),
    ({"paper_values": {"fedavg": {"evn": 1}}}, "did you mean 'even'"),
    ({"paper_values": {"fedavg": {"even": "high"}}}, "a number or [mean, std]"),
    ({"paper_values": {"prox": {"skewed": 1}}}, "has no such column"),
    ({"claims": [{"id": "c", "says": "s", "kind": "beats", "row": "fedavg"}]}, "needs over"),
    (
        {"claims": [{"id": "c", "says": "s", "kind": "within", "row": "fedavg", "over": "local"}]},
        "kind within needs by",
    ),
    (
        {"claims": [{"id": "c", "says": "s", "kind": "best", "row": "fedavg", "by": 1}]},
        "kind best takes no by",
    ),
    ({"claims": [{"id": "c", "says": "s", "kind": "bets", "row": "fedavg"}]}, "'beats'"),
    ({"claims": [{"id": "c", "kind": "best", "row": "fedavg"}]}, "says nothing"),
    ({"claims": [{"id": "c", "says": "s", "kind": "best", "row": "fedav"}]}, "did you mean"),
    ({"claims": [{"id": "c", "says": "s", "kind": "near", "row": "local", "within": 1}]}, "prints"),
    ({"claims": [{"id": "c", "says": "s", "kind": "trend", "along": ["even"]}]}, "two or more"),
    ({"quick": {"columns": ["evn"]}}, "did you mean 'even'"),
    ({"quick": {"rounds": 0}}, "at least 1"),
    ({"kind": "figure"}, "belong together"),
    ({"first": ["late"]}, "column in first"),
    ({"cells": [{"row": "none", "set": {}}]}, "row in cells"),
    (tuned({"rounds": [1, 2]}), "row t: tune takes settings of its method such as method.lr"),
    (tuned({"method.name": ["fedavg", "local"]}), "takes settings of its method"),
    (tuned({"method": {"lr": [1, 2]}}), "takes settings of its method"),
    (tuned({"method.lr": 0.1}), "row t: tune method.lr must be a list of values"),
    (tuned({"method.lr": []}), "must be a list of values"),
    (tuned({"method.lr": [0.1, 0.1]}), "has a value twice"),
    (tuned({"method.lr": [0.1]}), "has 1 points to choose from; give 2 to 100"),
    (tuned({f"method.x{k}": list(range(10)) for k in range(9)}), "has 1000000000 points"),
    (tuned([0.1, 0.2]), "tune must be a section with keys"),
    (tuned({"method.lr": [0.1, 0.2]}, extra=False), "add extra: true"),
    ({"tune_seeds": ["a"]}, "tune_seeds"),
]


@pytest.mark.parametrize(("change", "said"), WRONG, ids=lambda value: str(value)[:30])
def test_a_mistake_is_one_line_with_the_file(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        recipes.read_file(written(**change))
    assert said in str(error.value) and str(error.value).startswith("tiny.yaml: ")
    assert "\n" not in str(error.value)


def test_the_name_is_the_files() -> None:
    file = written()
    file.rename("other.yaml")
    with pytest.raises(UserError, match="other"):
        recipes.read("other.yaml")


def test_an_unknown_recipe_gets_a_hint() -> None:
    with pytest.raises(UserError, match="did you mean 'fedas-table3'"):
        recipes.read("fedas-tabel3")


@pytest.mark.parametrize("name", recipes.names())
def test_recipes_that_come_with_the_program_are_sound(name: str) -> None:
    """They are read, and every setting of every cell exists, at full size and quick."""
    read = recipes.read(name)
    for quick in (False, True):
        planned = [*trials(read, quick), *cells(read, quick=quick)]
        assert {cell.broken for cell in planned} <= {"", WAITING}
    assert read.title and read.notes


@pytest.mark.parametrize("words", ["\x1b[31mred", "two\nlines", "re\u202eversed"])
def test_words_of_a_recipe_cannot_drive_the_terminal(words: str) -> None:
    with pytest.raises(UserError, match=r"tiny\.yaml: '.*' holds a control character"):
        tiny(title=words)


def test_words_of_a_recipe_are_shown_and_not_obeyed() -> None:
    evil = r"[bold]\input{x}$y$<script>"
    table = PaperTable(tiny(title=evil, rows=[{"id": "a", "label": evil, "method": "fedavg"}],
                            claims=[], paper_values={}, quick={}), {}, {}, False)  # fmt: skip
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(terminal(table))
    assert console.export_text().count(evil) == 2
    lines = latex(table).splitlines()
    assert not any(r"\input" in line for line in lines if not line.startswith("%"))
    assert r"\textbackslash{}input\{x\}\$y\$" in latex(table)
    assert "<script>" not in markdown(table)


def test_a_row_that_lacks_seeds_is_not_the_best() -> None:
    values = {("fedavg", "even", "protocol"): {0: 80.0, 1: 81.0},
              ("local", "even", "protocol"): {0: 99.0}}  # fmt: skip
    table = PaperTable(tiny(), values, {})
    assert not any(cell.best for cell in table.cells.values())
    values["local", "even", "protocol"][1] = 99.0
    assert [key for key, cell in PaperTable(tiny(), values, {}).cells.items() if cell.best] == [
        ("local", "even")
    ]


def test_a_row_that_is_not_in_the_paper_is_not_the_best_of_it() -> None:
    """Nor where it has the very number of the best, as a tuned row that chose the same settings."""
    same = {0: 80.0, 1: 81.0}
    values = {(row, "even", "protocol"): same for row in ("fedavg", "prox")}
    values["local", "even", "protocol"] = {0: 70.0, 1: 71.0}
    shown = PaperTable(tiny(), values, {}).cells
    assert [key for key, cell in shown.items() if cell.best] == [("fedavg", "even")]


def test_the_table_says_which_cells_diverged() -> None:
    """A diverged run has a number: that of a model of no use."""
    values = {("fedavg", "even", "protocol"): {0: 80.0, 1: 10.0},
              ("local", "even", "protocol"): {0: 70.0}}  # fmt: skip
    diverged = {("fedavg", "even"): {1}, ("local", "skewed"): {0, 1}}
    table = PaperTable(tiny(), values, {}, diverged=diverged)
    assert table.ours(table.cells["fedavg", "even"]) == "45.0 ± 49.5 (1 diverged)"
    assert table.ours(table.cells["local", "even"]) == "70.0 (n=1)"
    assert table.ours(table.cells["local", "skewed"]) == "diverged"


def test_cells_of_columns_that_are_not_in_the_paper_are_told_apart() -> None:
    columns = [{"id": "even"}, {"id": "more", "extra": True}]
    made = tiny(columns=columns, rows=[{"id": "fedavg", "method": "fedavg"}], claims=[],
                paper_values={}, quick={})  # fmt: skip
    rows = csv.DictReader(as_csv(PaperTable(made, {}, {})).splitlines())
    assert [(row["column"], row["in_paper"]) for row in rows] == [("even", "yes"), ("more", "no")]


def test_rows_above_the_winner_are_told() -> None:
    """All rivals of all claims about a cell; two rows that a claim calls the best are none."""
    rows = [{"id": name, "method": name} for name in ("fedavg", "local", "fedper")]
    claims = [
        {"id": "all", "says": "s", "kind": "best", "row": ["fedavg", "local"]},
        {"id": "one", "says": "s", "kind": "best", "row": "fedavg", "among": ["local"],
         "columns": ["skewed"]},
    ]  # fmt: skip
    made = tiny(rows=rows, claims=claims, paper_values={}, quick={})
    values = {("fedavg", "even", "protocol"): {0: 80.0, 1: 81.0},
              ("local", "even", "protocol"): {0: 90.0, 1: 91.0},
              ("fedper", "even", "protocol"): {0: 82.0, 1: 81.5, 2: 99.0}}  # fmt: skip
    values |= {(row, "skewed", metric): v for (row, _, metric), v in values.items()}
    told = "Above fedavg (mean lead in points), against the paper: "
    there = "α=0.5 by 1.25 (2 of 2 seeds), even by 1.25 (2 of 2 seeds)"
    assert PaperTable(made, values).remarks == [
        f"{told}fedper in {there}; local in α=0.5 by 10.00 (2 of 2 seeds)."
    ]


def test_large_numbers_are_short() -> None:
    values = {("fedavg", "even", "flops_per_round"): {0: 1.4454528e12, 1: 1.4454528e12}}
    table = PaperTable(tiny(metric="flops_per_round"), values, {})
    assert table.ours(table.cells["fedavg", "even"]) == "1.45e+12 ± 0"
