"""What README shows: the table that `idiolect demo` prints, and numbers of the papers' pages."""

import re
from pathlib import Path

import pytest

from tests.cli.calls import call

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# Another kind of CPU rounds differently, and a client with 13 test samples moves by 8 points.
CLOSE = {"accuracy %": 1.0, "gain over local": 1.5, "p10 %": 4.0, "worst %": 10.0, "harmed %": 10.0}


def rows(markdown: str) -> list[dict[str, str]]:
    cells = [
        [cell.strip(" *") for cell in line.strip("|").split("|")]
        for line in markdown.splitlines()
        if line.startswith("|")
    ]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def test_the_first_table_has_the_methods_and_the_work_of_the_demo() -> None:
    from idiolect.cli.compare import DEMO_METHODS, DEMO_SETS

    shown = first_table()
    assert tuple(row["method"] for row in shown) == DEMO_METHODS
    lr = next(s.split("=")[1] for s in DEMO_SETS if s.startswith("method.lr="))
    assert {row["lr"] for row in shown if row["method"] != "pflego"} == {lr}


@pytest.mark.heavy
def test_the_demo_prints_the_first_table(tmp_path: Path) -> None:
    done = call("demo", "--out", tmp_path / "demo")
    assert done.exit_code == 0, done.output
    printed = rows((tmp_path / "demo/compare.md").read_text(encoding="utf-8"))
    for shown, row in zip(first_table(), printed, strict=True):
        for column, value in shown.items():
            if column in CLOSE and value != "–":
                assert abs(float(value) - float(row[column])) <= CLOSE[column], (column, row)
            else:
                assert value == row[column], (column, row)


def first_table() -> list[dict[str, str]]:
    return rows("|" + README.partition("\n|")[2].partition("\n\n")[0])


def test_numbers_of_the_papers_are_those_of_their_pages() -> None:
    pages = [file.read_text(encoding="utf-8") for file in (ROOT / "docs/papers").glob("*.md")]
    cells = {
        (ours, theirs and float(theirs))
        for page in pages
        for ours, theirs in re.findall(r"(\d+\.\d ± \d+\.\d)\*{0,2}<br>(?:([\d.]+)|–)", page)
    }
    shown = re.findall(r"(\d+\.\d ± \d+\.\d)\*{0,2}(?: \(([\d.]+)\))?", README)
    assert len(shown) >= 40
    assert not [(a, b) for a, b in shown if (a, b and float(b)) not in cells]


def test_recipes_and_claims_are_counted() -> None:
    from idiolect.papers import recipe as recipes

    every = [recipes.read(name) for name in recipes.names()]
    claims = sum(len(one.claims) for one in every)
    said = f"all {len(every)} tables and figures of the four papers are there, with {claims} claims"
    assert said in " ".join(README.split())
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"({len(every)} recipes, {claims} claims)" in changes
