"""What a trial is worth: the protocol's number on validation samples, and nothing else."""

from typing import Any

import numpy as np
import pytest

from idiolect.errors import UserError
from idiolect.runs.trials import mean_worth, points, rank, worth
from idiolect.simulation.protocols import PROTOCOLS

VALIDATION = {0: [0.1, 0.1], 1: [0.9, 0.3], 2: [0.4, 0.5]}


def rounds(**changes: Any) -> dict[int, dict[str, np.ndarray]]:
    """Two clients; on test samples things are the other way round."""
    n = np.arange(2)
    made = {}
    for t, scores in VALIDATION.items():
        made[t] = {
            "client": n, "started": n >= 0, "unseen": n < 0,
            "test_size": np.array([5, 5]), "val_size": np.array([1, 3]), "train_size": n + 9,
        } | {f"{part}accuracy_{when}": np.array(scores) if part else 1 - np.array(scores)
             for part in ("", "val_") for when in ("before", "after")} | changes  # fmt: skip
    return made


def test_points_are_all_combinations() -> None:
    assert points({}) == [{}]
    assert points({"a": [1, 2], "b": ["x", "y"]}) == [
        {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("protocol", "number"),
    [
        ("default", 0.45),  # mean of the last round
        ("spfl", 0.45),
        ("plga", 0.45),
        ("fedas", 0.475),  # pooled by validation samples, best round (2: 0.1 and 3 times 0.5)
        ("feddwa", 0.45),  # the model received: that of the round before
        ("pflego", (0.45 + 0.475) / 2),  # last ten rounds, the untrained start is none
    ],
)
def test_a_trial_is_judged_as_its_protocol_judges(protocol: str, number: float) -> None:
    assert protocol in PROTOCOLS
    assert worth(rounds(), False, protocol) == pytest.approx(number)
    nothing = np.full(2, np.nan)
    changed = rounds(accuracy_before=nothing, accuracy_after=nothing, test_size=np.zeros(2))
    assert worth(changed, False, protocol) == pytest.approx(number)


def test_what_diverged_or_was_not_measured_is_lost() -> None:
    assert worth(rounds(), True) is None
    assert worth(rounds(val_accuracy_before=np.full(2, np.nan)), False) is None
    with pytest.raises(UserError, match="no validation samples"):
        worth(rounds(val_size=np.zeros(2)), False)


def test_one_lost_seed_loses_the_point() -> None:
    assert mean_worth([0.4, 0.6]) == 0.5
    assert mean_worth([0.9, None]) is None and mean_worth([]) is None
    assert rank(None) < rank(-1e9)
