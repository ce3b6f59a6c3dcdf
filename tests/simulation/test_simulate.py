"""The Python door: arrays in, models and accuracies out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import idiolect
from idiolect.data import Federation
from idiolect.errors import UserError
from tests.conftest import SmallNet


def test_every_round_is_returned(ragged: Federation, small_net: nn.Module) -> None:
    result = idiolect.simulate(
        {"name": "fedper", "lr": 0.1},
        ragged,
        small_net,
        rounds=3,
        save_models="every",
        device="cpu",
    )
    assert list(result.models) == [0, 1, 2, 3]
    assert result.accuracy().shape == (4, ragged.n_clients)
    assert result.summary["rounds"] == 3
    assert result.summary["accuracy"]["last"]["mean"] == pytest.approx(result.accuracy()[-1].mean())
    mine = SmallNet()
    mine.load_state_dict(result.last.clients[3])
    with torch.no_grad():
        rows = ragged.test[3]
        hit = (mine(ragged.x[rows].float()).argmax(1) == ragged.y[rows]).float().mean()
    assert float(hit) == pytest.approx(result.accuracy()[-1, 3])
    assert set(result.last.server) == {n for n in mine.state_dict() if n.startswith("body")}


def test_starts_from_given_weights(ragged: Federation, small_net: nn.Module) -> None:
    start = {n: torch.full_like(v, 0.01) for n, v in small_net.state_dict().items()}
    result = idiolect.simulate(
        "fedavg", ragged, small_net, rounds=1, init=start, save_models="every", device="cpu"
    )
    assert torch.equal(result.models[0].clients[2]["head.weight"], start["head.weight"])


def test_best_is_the_best_round(ragged: Federation, small_net: nn.Module) -> None:
    result = idiolect.simulate(
        {"name": "local", "lr": 0.3}, ragged, small_net, rounds=6, save_models="best", device="cpu"
    )
    means = result.accuracy()[1:].mean(1)
    assert list(result.models) == [1 + int(np.argmax(means))]


def test_bad_options_are_told(ragged: Federation, small_net: nn.Module) -> None:
    with pytest.raises(UserError, match="did you mean 'fedavg'"):
        idiolect.simulate("fedavgg", ragged, small_net, rounds=1)
    with pytest.raises(UserError, match="save_models"):
        idiolect.simulate("fedavg", ragged, small_net, rounds=1, save_models="always")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="classes"):
        idiolect.simulate("fedavg", ragged, SmallNet(classes=7), rounds=1)
    with pytest.raises(UserError, match="cannot take samples"):
        idiolect.simulate("fedavg", ragged, nn.Sequential(nn.Linear(3, 5)), rounds=1)
    with pytest.raises(UserError, match="participation"):
        idiolect.simulate("fedavg", ragged, small_net, rounds=1, participation=0.0)
