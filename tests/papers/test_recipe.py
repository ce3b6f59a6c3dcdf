"""Recipe files are checked on reading, and those that come with the program are sound."""

import io
from typing import Any

import pytest
from rich.console import Console

from idiolect.errors import UserError
from idiolect.papers import recipe as recipes
from idiolect.papers.campaign import check_recipes
from idiolect.papers.paper_table import PaperTable, latex, markdown, terminal
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
    assert check_recipes([read]) == []
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


def test_large_numbers_are_short() -> None:
    values = {("fedavg", "even", "flops_per_round"): {0: 1.4454528e12, 1: 1.4454528e12}}
    table = PaperTable(tiny(metric="flops_per_round"), values, {})
    assert table.ours(table.cells["fedavg", "even"]) == "1.45e+12 ± 0"
