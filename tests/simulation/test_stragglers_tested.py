"""Tests every few rounds see what tests in every round see, stragglers included."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from idiolect import methods
from idiolect.data import Federation
from idiolect.simulation.schedule import Stragglers
from idiolect.simulation.side_by_side import Sweep
from tests.conftest import simulation

ROUNDS = 9


QUICK = [("plga", 3), ("plga", 100), ("fedavg_async", 2), ("fedavg", 4)]
CASES = [(name, n) for name in ("plga", "fedavg_async", "fedavg") for n in (2, 3, 4, 100)]


@pytest.mark.parametrize(
    ("name", "every"),
    [pytest.param(*c, marks=[] if c in QUICK else [pytest.mark.heavy]) for c in CASES],
)
def test_a_straggler_is_tested_whenever_it_comes(
    name: str, every: int, ragged: Federation, small_net: nn.Module
) -> None:
    """Client 1 is back every other round, client 2 every third, client 3 every fourth."""

    def made(every: int):  # type: ignore[no-untyped-def]
        late = Stragglers(periods=(0, 1, 2, 3))
        method = methods.build({"name": name})
        return simulation(method, ragged, small_net, ROUNDS, stragglers=late, eval_every=every)

    always, seldom, stacked = made(1), made(every), Sweep([made(every), made(every)])
    for number in range(1, ROUNDS + 1):
        expected, found = always.step().clients, seldom.step().clients
        both = [one.clients for one in stacked.step()]
        if number % every and number < ROUNDS:
            assert np.isnan(found["accuracy_after"]).all()
            continue
        for column in ("accuracy_after", "loss_after", "accuracy_before"):
            for one in (found, both[1]):
                np.testing.assert_allclose(one[column], expected[column], rtol=1e-9, err_msg=column)
