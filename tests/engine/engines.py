"""What the tests of both engines share: a handle on clients, runs of both, and their agreement."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from idiolect import methods
from idiolect.core.local import Local
from idiolect.core.tree import Tree
from idiolect.data import Federation
from tests.conftest import ENGINES, ragged_federation, run, simulation
from tests.methods.plain import NET, TINY

RAGGED = ragged_federation()
LOCAL = {"name": "local", "lr": 0.05, "batch_size": 8, "epochs": 2}


def local_of(engine: str, ids: list[int], net: nn.Module = NET, round: int = 0) -> Local:
    return simulation(methods.build("local"), TINY, net, 1, engine=engine).engine.local(ids, round)


def stacked(state: Tree, k: int) -> Tree:
    return {n: v.expand(k, *v.shape).clone() for n, v in state.items()}


def both(
    net: nn.Module, federation: Federation, settings: dict[str, Any], rounds: int = 2, **more: Any
) -> tuple[Any, Any]:
    method = methods.build(settings)
    return tuple(run(method, federation, net, rounds, engine=e, **more) for e in ENGINES)  # type: ignore[return-value]


def assert_agree(one: Any, other: Any, tol: float = 1e-9) -> None:
    for i in range(one.federation.n_clients):
        a, b = one.personal_model(i), other.personal_model(i)
        for n, v in a.items():
            if v.is_floating_point():
                gap = float((v - b[n]).abs().max())
                assert gap <= tol * max(1.0, float(v.abs().max())), f"client {i} {n}: {gap:.1e}"
    for name, column in one.scores.columns.items():
        assert np.allclose(column, other.scores.columns[name], atol=10 * tol, equal_nan=True), name
