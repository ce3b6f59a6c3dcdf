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


def test_late_work_that_only_the_server_mixes_does_not_put_a_test_off(
    ragged: Federation, small_net: nn.Module
) -> None:
    """Such a client is not tested when its work arrives, so it is tested when it has trained."""
    method = methods.build({"name": "fedasync", "steps": 2})
    how = {"stragglers": Stragglers(periods=(1, 2), cycle="paper")}
    always, seldom = (
        simulation(method, ragged, small_net, 8, eval_every=every, **how) for every in (1, 4)
    )
    for _ in range(8):
        expected, found = always.step().clients, seldom.step().clients
    np.testing.assert_allclose(found["loss_after"], expected["loss_after"], rtol=1e-9)


def test_a_model_that_was_trained_further_untested_has_no_score(
    ragged: Federation, small_net: nn.Module
) -> None:
    """Two of five clients train in a round, and models are tested every third."""
    method, how = methods.build("fedavg"), {"participation": 0.4}
    always, seldom = (
        simulation(method, ragged, small_net, ROUNDS, eval_every=every, **how) for every in (1, 3)
    )
    tested: dict[int, int] = {}  # client -> round of its last training
    unknown = 0
    for number in range(1, ROUNDS + 1):
        expected, found = always.step(), seldom.step().clients
        tested |= dict.fromkeys(expected.started, number)
        if number % 3:
            continue
        known = [i for i, t in tested.items() if t % 3 == 0]
        others = [i for i in range(ragged.n_clients) if i not in known]
        for column in ("accuracy_after", "loss_after"):
            one, other = expected.clients[column], found[column]
            np.testing.assert_allclose(other[known], one[known], rtol=1e-9, err_msg=column)
            assert np.isnan(other[others]).all()
        unknown += len(set(others) & set(tested))
    assert unknown
