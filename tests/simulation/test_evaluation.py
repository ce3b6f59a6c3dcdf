"""In which rounds models are tested."""

from typing import Any

import numpy as np
import pytest

from idiolect.errors import UserError
from idiolect.simulation.evaluation import RoundsTested
from idiolect.simulation.simulate import simulate
from tests.methods.plain import NET, TINY


def test_rounds_that_are_tested() -> None:
    tested = RoundsTested(25, every=10, at_end=3)
    assert [t for t in range(1, 26) if t in tested] == [10, 20, 23, 24, 25]
    assert [tested.after(t) for t in (0, 9, 10, 20, 22, 23, 24)] == [10, 10, 20, 23, 23, 24, 25]
    usual = RoundsTested(25, every=10)
    assert [t for t in range(1, 26) if t in usual] == [10, 20, 25]
    assert [usual.after(t) for t in (1, 19, 20, 24)] == [10, 20, 25, 25]
    assert [t for t in range(1, 4) if t in RoundsTested(3, 5, 10)] == [1, 2, 3]


@pytest.mark.parametrize(("rounds", "every", "name"), [(0, 1, "rounds"), (3, 0, "eval_every")])
def test_there_is_a_round_and_a_test(rounds: int, every: int, name: str) -> None:
    with pytest.raises(UserError, match=f"{name} must be at least 1, not 0"):
        RoundsTested(rounds, every)


def test_a_mean_over_the_last_ten_rounds_is_one_of_ten() -> None:
    """However rarely the others are tested."""
    how: dict[str, Any] = {"rounds": 14, "protocol": "pflego", "participation": 0.5}
    usual = simulate("pflego", TINY, NET, **how)
    rarely = simulate("pflego", TINY, NET, eval_every=7, **how)
    assert rarely.summary["protocol"] == usual.summary["protocol"]
    tested = [r.round for r in rarely.rounds if np.isfinite(r.clients["accuracy_before"]).any()]
    assert tested == [0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
