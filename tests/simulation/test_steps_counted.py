"""Gradient steps of a round: counted by both engines, with the same result."""

import numpy as np
import pytest
from torch import nn

from idiolect.data import Federation
from idiolect.simulation.simulate import simulate

SIZES = (7, 16, 3)


def federation() -> Federation:
    draw = np.random.default_rng(0)
    clients = []
    for n in SIZES:
        x, y = draw.normal(size=(n, 5)).astype(np.float32), draw.integers(0, 3, n)
        clients.append({"x_train": x, "y_train": y, "x_test": x, "y_test": y})
    return Federation.from_arrays(clients, classes=3)


@pytest.mark.parametrize("method", ["fedavg", "fedas", "pflego", "ditto", "fedrep", "scaffold"])
def test_both_engines_count_the_same(method: str) -> None:
    counted = []
    for engine in ("loop", "stacked"):
        done = simulate(method, federation(), nn.Linear(5, 3), rounds=2, engine=engine)  # type: ignore[arg-type]
        counted.append([(one.samples, one.steps) for one in done.rounds])
        assert done.summary["steps"] == sum(one.steps or 0 for one in done.rounds)
    assert counted[0] == counted[1] and counted[0][0] == (0, 0)


def test_steps_are_mini_batches() -> None:
    method = {"name": "fedavg", "epochs": 2, "batch_size": 4}
    done = simulate(method, federation(), nn.Linear(5, 3), rounds=1)
    assert done.rounds[1].steps == sum(2 * -(-n // 4) for n in SIZES)
