"""FedAS's Figure 3a: the most informed parameters replaced, or as many by lot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from idiolect import data, models
from idiolect.simulation.fisher_replacement import fisher_diagonal, replacement
from idiolect.simulation.simulate import simulate
from tests.methods.plain import CLIENTS, NET, START, TINY, batches, gradient, model_with, vector


def test_information_is_the_diagonal_of_the_empirical_fisher() -> None:
    for i, client in enumerate(CLIENTS):
        rows = batches(len(client), 4)
        expected = sum(vector(gradient(START, client, b)).square() for b in rows)
        found = fisher_diagonal(model_with(START), TINY, i, batch_size=4)
        assert torch.allclose(found, expected, atol=1e-12)


def test_everything_replaced_by_zeros_is_a_constant_guess() -> None:
    found = replacement(TINY, NET, [START] * 4, share=1.0)
    first = [float((c.y == 0).double().mean()) for c in CLIENTS]  # equal logits: class 0
    assert found["top"].tolist() == found["random"].tolist() == pytest.approx(first)


def test_the_models_stay_as_they_are() -> None:
    before = {n: v.clone() for n, v in NET.state_dict().items()}
    one, two = (replacement(TINY, NET, [START] * 4, by="noise", seed=3) for _ in range(2))
    assert all(np.array_equal(one[k], two[k]) for k in one)
    assert all(torch.equal(v, before[n]) for n, v in NET.state_dict().items())
    assert all(torch.equal(v, before[n]) for n, v in START.items())


@pytest.mark.parametrize("by", ["zeros", "noise"])
def test_the_most_informed_parameters_matter_most(by: Any) -> None:
    federation = data.build({"name": "digits"}, {"name": "dirichlet", "clients": 4, "alpha": 1.0})
    net: nn.Module = models.build({"name": "mlp"}, federation.shape, federation.classes)
    done = simulate({"name": "fedavg", "lr": 0.1, "epochs": 5}, federation, net, rounds=4)
    found = replacement(federation, net, done.last.clients, by=by)
    assert found["intact"].mean() > 0.8
    assert found["top"].mean() < found["random"].mean() - 0.1
