"""The table of README is the one that `idiolect demo` prints."""

from pathlib import Path

import pytest

from tests.cli.calls import call

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
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
