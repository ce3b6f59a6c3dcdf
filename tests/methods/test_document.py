"""docs/methods.md has every method of the registry, as the registry describes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from idiolect.methods import REGISTRY, document

DOCUMENT = Path(__file__).parents[2] / "docs" / "methods.md"


@pytest.mark.parametrize("name", list(REGISTRY))
def test_described(name: str) -> None:
    method = REGISTRY[name]
    assert method.paper and method.personal_part and method.traffic
    assert method.year >= 2017 or name == "local"


def test_document_is_up_to_date() -> None:
    if DOCUMENT.read_text() != document.document():
        pytest.fail("run: python -m idiolect.methods.document > docs/methods.md")


def test_rows() -> None:
    rows = {line.split("`")[1]: line for line in document.table().splitlines() if line[:3] == "| `"}
    assert set(rows) == set(REGISTRY)
    assert rows["fedfomo"].split("|")[5].strip() == "1 + M"
    assert rows["plga"].endswith("| used |") and rows["fedavg"].endswith("| no |")
