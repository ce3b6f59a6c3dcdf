"""The small problems the tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from idiolect.conformance.problem import ragged_federation
from idiolect.core import tree
from idiolect.core.clients import Table
from idiolect.data import Federation
from idiolect.engine.stacked import StackedEngine
from idiolect.simulation.simulation import Simulation

GOLDEN = Path(__file__).parent / "golden"
ENGINES = ("loop", "stacked")

torch.set_num_threads(1)  # also for fixtures of modules, which come before those of tests


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks as wide as on a GPU, also of convolutions."""
    monkeypatch.setattr(StackedEngine, "narrow_on_cpu", False)


@pytest.fixture(autouse=True)
def _as_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables as wide as they are (xdist's processes have COLUMNS), and one thread for programs that
    tests start, as they run side by side."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _alike() -> None:
    """The same draws in every run of the suite, and one thread, as tests run side by side, whatever
    ran before: a resumed run takes the number of threads it began with."""
    torch.manual_seed(0)
    torch.set_num_threads(1)


class SmallNet(nn.Module):
    """The network of the golden problem; `norm` adds BatchNorm, `drop` dropout. `smooth`: without
    corners, where rounding in float32 may decide which way a gradient points."""

    def __init__(
        self, classes: int = 5, norm: bool = False, drop: float = 0.0, smooth: bool = False
    ) -> None:
        super().__init__()
        bend, pool = (nn.Tanh, nn.AvgPool2d) if smooth else (nn.ReLU, nn.MaxPool2d)
        layers: list[nn.Module] = [nn.Conv2d(1, 4, 3)]
        if norm:
            layers.append(nn.BatchNorm2d(4))
        layers += [bend(), pool(2), nn.Conv2d(4, 8, 3), bend(), nn.Flatten()]
        if drop:
            layers.append(nn.Dropout(drop))
        layers += [nn.Linear(72, 24), bend()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


class Golden:
    """One file of numbers made by the authors' own programs."""

    def __init__(self, name: str) -> None:
        self.arrays = np.load(GOLDEN / f"{name}.npz", allow_pickle=False)

    def __getitem__(self, key: str) -> Tensor:
        return torch.from_numpy(self.arrays[key])

    def tree(self, prefix: str) -> dict[str, Tensor]:
        cut = len(prefix) + 1
        names = [n for n in self.arrays if n.startswith(f"{prefix}/") and n.count("/", cut) == 0]
        return {n[cut:]: self[n] for n in names}


@pytest.fixture(scope="session")
def golden_federation() -> Federation:
    problem = Golden("problem")
    parts = ("x_train", "y_train", "x_test", "y_test")
    clients = [{p: problem[f"client{i}/{p}"] for p in parts} for i in range(4)]
    return Federation.from_arrays(clients, classes=5)


@pytest.fixture(scope="session")
def golden_start() -> dict[str, Tensor]:
    return Golden("problem").tree("init")


@pytest.fixture(scope="session")
def ragged() -> Federation:
    return ragged_federation()


@pytest.fixture(scope="session")
def small_net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return SmallNet()


def simulation(method, federation, model, rounds=3, **options) -> Simulation:  # type: ignore[no-untyped-def]
    settings = {"device": "cpu", "dtype": "float64", "engine": "stacked"} | options
    return Simulation(method, federation, model, rounds=rounds, **settings)


def run(method, federation, model, rounds=3, **options) -> Simulation:  # type: ignore[no-untyped-def]
    sim = simulation(method, federation, model, rounds, **options)
    for _ in range(rounds):
        sim.step()
    return sim


def rows(table: Table) -> dict[int, Any]:
    """Copies of all rows that were written into a table."""
    return {i: tree.each(torch.clone, row) for i, row in table.items()}


def assert_close(
    ours: dict[str, Tensor], theirs: dict[str, Tensor], atol: float = 1e-5, what: str = ""
) -> None:
    assert set(theirs) <= set(ours), f"{what}: missing {set(theirs) - set(ours)}"
    for name, value in theirs.items():
        gap = (ours[name].double() - value.double()).abs().max().item()
        assert gap <= atol, f"{what} {name}: off by {gap:.2e}"
