"""docs/cli.md has every setting of a run, docs/methods.md every method, as they are declared."""

from pathlib import Path

import pytest

from idiolect.cli import docs_tables
from idiolect.methods import REGISTRY
from idiolect.runs.config import SETTINGS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", docs_tables.TABLES)
def test_page_is_up_to_date(name: str) -> None:
    page = DOCS / name
    if page.read_text(encoding="utf-8") != docs_tables.renewed(page):
        pytest.fail("run: python -m idiolect.cli.docs_tables docs")


def test_every_setting_has_a_row() -> None:
    table = docs_tables.settings()
    for name in SETTINGS:
        assert f"`{name}`" in table or f"`{name}.name`" in table, name
    assert "| `--engine` | `engine` |" in table and "`clock.window`" in table


@pytest.mark.parametrize("name", list(REGISTRY))
def test_every_method_is_described(name: str) -> None:
    method = REGISTRY[name]
    assert method.paper and method.personal_part and method.traffic
    assert method.year >= 2017 or name == "local"


def test_every_method_has_a_row() -> None:
    lines = docs_tables.methods().splitlines()
    rows = {line.split("`")[1]: line for line in lines if line[:3] == "| `"}
    assert set(rows) == set(REGISTRY)
    assert rows["fedfomo"].split("|")[5].strip() == "1 + M"
    assert rows["plga"].endswith("| used |") and rows["fedavg"].endswith("| no |")
