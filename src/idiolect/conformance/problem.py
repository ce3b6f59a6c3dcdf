"""The small problem on which a method is tried: ragged clients, small networks, little work."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from idiolect import methods
from idiolect.core import tree
from idiolect.core.method import Method
from idiolect.core.own_code import is_own, whole
from idiolect.core.tree import Tree
from idiolect.data import Federation
from idiolect.simulation.schedule import Stragglers
from idiolect.simulation.simulation import Simulation

ROUNDS = 3
EXACT: dict[str, Any] = {"device": "cpu", "dtype": "float64"}
LITTLE_WORK = {"lr": 0.1, "batch_size": 8, "epochs": 2, "tau": 5, "gamma": 2, "growth_rounds": 0}


def ragged_arrays(
    sizes: tuple[int, ...] = (24, 30, 7, 40, 33), classes: int = 5, seed: int = 0
) -> list[dict[str, np.ndarray]]:
    """Clients of different size with learnable labels."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(classes, 1, 12, 12))

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, classes, n)
        return means[y] + rng.normal(size=(n, 1, 12, 12)), y

    made = []
    for n in sizes:
        (x, y), (x_test, y_test) = draw(n), draw(12)
        made.append({"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test})
    return made


def ragged_federation(
    sizes: tuple[int, ...] = (24, 30, 7, 40, 33), classes: int = 5, seed: int = 0
) -> Federation:
    return Federation.from_arrays(ragged_arrays(sizes, classes, seed), classes=classes)


class Plain(nn.Module):
    """No BatchNorm: through it rounding would grow far beyond 1e-9 in three rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(144, 8), nn.LayerNorm(8), nn.ReLU())
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


class Normed(Plain):
    """With BatchNorm statistics, and without a bias that never moves in front of them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(144, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU()
        )


@cache
def clients() -> Federation:
    return ragged_federation()


@cache
def network(kind: Any = Plain) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind()


def with_little_work(name: str, allow_code: Collection[str] = ()) -> Method:
    """The method of this name with little work per round."""
    kind = methods.REGISTRY.admit(name, allow_code) if is_own(name) else methods.build(name)
    defaults = {known.name: known.default for known in fields(kind)}
    wanted: dict[str, Any] = {k: v for k, v in LITTLE_WORK.items() if k in defaults}
    if defaults.get("steps"):
        wanted["steps"] = 3
    return methods.build({"name": name, **wanted}, allow_code)


@dataclass(frozen=True)
class Finished:
    """What is left of a run: everything the simulation holds, before the last round and after."""

    middle: tuple[Tree, dict[str, Any]]
    end: Tree
    meta: dict[str, Any]
    personal: Tree


class Subject:
    """A method that is tried, by name, with what its runs left so far."""

    def __init__(self, name: str, allow_code: Collection[str] = ()) -> None:
        self.name = whole(name) if is_own(name) else name  # as configs have it
        self.allow_code = tuple(allow_code)
        self.method = with_little_work(self.name, self.allow_code)
        self.deployed: Any = None  # on sites
        self._runs: dict[tuple[str, int], Finished] = {}

    def ran(self, engine: str = "stacked", seed: int = 0) -> Finished:
        """Three rounds; kept, as several laws look at the same run."""
        if (engine, seed) not in self._runs:
            sim = begin(self.method, engine=engine, seed=seed)
            for _ in range(ROUNDS - 1):
                sim.step()
            self._runs[engine, seed] = Finished(sim.state(), *finish(sim))
        return self._runs[engine, seed]


def late_clients(method: Method) -> Stragglers | None:
    """Two stragglers, if the method uses late work."""
    return Stragglers(periods=(1, 2)) if method.asynchronous else None


def begin(method: Method, kind: Any = Plain, **options: Any) -> Simulation:
    """Ragged clients, three of five asked each round; two are stragglers if that may be."""
    usual = {"participation": 0.6, "stragglers": late_clients(method), "engine": "stacked"}
    settings = EXACT | usual | options
    return Simulation(method, clients(), network(kind), rounds=ROUNDS, **settings)


def finish(sim: Simulation) -> tuple[Tree, dict[str, Any], Tree]:
    """The rest of the rounds; the state after them, and what clients predict with."""
    while sim.round < ROUNDS:
        sim.step()
    everyone = list(range(sim.federation.n_clients))
    return *sim.state(), tree.clone(sim._personal(everyone))
