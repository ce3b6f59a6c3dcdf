"""The registry finds every method by its file; a name belongs to one method."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from idiolect import methods
from idiolect.methods import REGISTRY, registered
from idiolect.methods.fedavg import FedAvg


def test_every_file_is_found() -> None:
    folder = Path(methods.__file__).parent
    files = {f"idiolect.methods.{file.stem}" for file in folder.glob("[!_]*.py")}
    assert {kind.__module__ for kind in REGISTRY.values()} == files


def test_order_is_year_then_name() -> None:
    order = [(kind.year, name) for name, kind in REGISTRY.items()]
    assert order == sorted(order)
    assert next(iter(REGISTRY)) == "local"


def test_any_name_can_be_fine_tuned() -> None:
    assert "spfl_ft" in REGISTRY and "spfl_ft_ft" not in REGISTRY and "nothing_ft" not in REGISTRY
    assert REGISTRY["spfl_ft"].name == "spfl_ft"


def test_two_methods_of_one_name() -> None:
    @dataclass(frozen=True)
    class Another(FedAvg):
        name: ClassVar[str] = "fedavg"

    with pytest.raises(ValueError, match=r"two methods are named 'fedavg': .*FedAvg and .*Another"):
        registered([FedAvg, Another])
