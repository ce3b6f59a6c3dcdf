"""The training loss of a round is that of training; what a method learns besides is no part."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import ENGINES
from tests.methods.plain import CLIENTS, NET, START, TINY, loss
from tests.watched import Watched

SGD: dict[str, Any] = {"lr": 0.1, "batch_size": 4, "epochs": 2, "weight_decay": 0.0}


def first_loss(engine: str, **method: Any) -> float:
    return Watched(method, TINY, NET, 1, engine=engine).rounds[0].train_loss


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "method",
    [
        {"name": "feddwa"},  # a guidance model, one step ahead
        {"name": "spfl", "two_step": False},  # a training that only measures similarity
        {"name": "fedas", "align_lr": 0.0},  # features that are aligned
    ],
)
def test_training_from_the_common_start_has_one_loss(method: dict[str, Any], engine: str) -> None:
    alone = first_loss(engine, name="local", **SGD)
    assert first_loss(engine, **SGD | method) == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_learning_a_mixture_is_no_training(engine: str) -> None:
    """Both models of APFL are the same at first, so that alpha does not move."""
    fixed, learnt = (first_loss(engine, name="apfl", adaptive=a, **SGD) for a in (False, True))
    assert fixed == pytest.approx(learnt, rel=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_single_gradient_step_has_a_loss(engine: str) -> None:
    given = {"name": "pflego", "tau": 1, "head_init": "start"}
    everybody = [loss(START, client) for client in CLIENTS]
    found = first_loss(engine, **given)
    assert 0 < found <= sum(everybody) / len(everybody) + 1e-12  # over their own classes only
