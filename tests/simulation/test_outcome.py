"""Rounds that are not waited for are the rounds that are."""

from __future__ import annotations

import math

import numpy as np
import pytest

from idiolect import methods
from idiolect.errors import UserError
from tests.conftest import SmallNet, ragged_federation, simulation


def test_a_settled_round_is_the_round_that_was_waited_for() -> None:
    method, data, model = methods.build("fedavg"), ragged_federation(), SmallNet()
    there, later = (simulation(method, data, model, 3) for _ in range(2))
    waited = [there.step() for _ in range(3)]
    left = [later.step(wait=False) for _ in range(3)]
    assert all(math.isnan(one.train_loss) and one.seconds == 0 for one in left)
    for a, b in zip(waited, [one.settle() for one in left], strict=True):
        assert a.train_loss == b.train_loss
        assert b.seconds > b.seconds_eval > 0
        for name in a.clients:
            np.testing.assert_array_equal(a.clients[name], b.clients[name])
        assert b.settle() is b


def test_tf32_needs_a_gpu() -> None:
    with pytest.raises(UserError, match="needs a GPU"):
        simulation(methods.build("fedavg"), ragged_federation(), SmallNet(), 1, dtype="tf32")
