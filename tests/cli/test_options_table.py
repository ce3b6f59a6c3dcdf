"""docs/cli.md has every setting of a run, as the run's config declares it."""

from pathlib import Path

import pytest

from idiolect.cli import options_table
from idiolect.runs.config import SETTINGS

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    if text != options_table.renewed(text):
        pytest.fail("run: python -m idiolect.cli.options_table docs/cli.md")


def test_every_setting_has_a_row() -> None:
    table = options_table.table()
    for name in SETTINGS:
        assert f"`{name}`" in table or f"`{name}.name`" in table, name
    assert "| `--engine` | `engine` |" in table and "`clock.window`" in table
