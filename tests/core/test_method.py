"""The contract's own example runs, and what it rests on behaves as told."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from idiolect.core import method as contract
from idiolect.errors import UserError
from idiolect.methods.fedavg import FedAvg
from idiolect.simulation.simulate import simulate
from tests.conftest import ENGINES, ragged_federation


def toy() -> dict[str, Any]:
    """What the program in the docstring defines."""
    text = (contract.__doc__ or "").partition("\n\n")[2]
    program, _, _ = text.partition("    simulate(")
    names: dict[str, Any] = {"__name__": __name__}
    exec(textwrap.dedent(program), names)
    return names


@pytest.mark.parametrize("engine", ENGINES)
def test_the_toy_method_runs(engine: str, small_net: nn.Module) -> None:
    Halfway = toy()["Halfway"]
    options: dict[str, Any] = {"rounds": 2, "engine": engine, "dtype": "float64"}
    federation = ragged_federation()
    result = simulate(Halfway(lr=0.1), federation, small_net, **options)
    assert np.isfinite(result.accuracy()).all()
    one, two = (result.last.clients[i]["head.weight"] for i in (0, 1))
    assert not torch.equal(one, two)
    shared = simulate(Halfway(lr=0.1, share=0), federation, small_net, **options)
    plain = simulate(FedAvg(lr=0.1), federation, small_net, **options)
    for n, v in plain.last.clients[0].items():
        assert torch.allclose(shared.last.clients[0][n], v, atol=1e-12)


def test_the_toy_method_is_checked_and_short() -> None:
    with pytest.raises(UserError, match=r"method\.share must be at least 0 and at most 1, got 2"):
        toy()["Halfway"](share=2)
    text = contract.__doc__ or ""
    assert 15 <= text[text.index("@dataclass") : text.index("simulate(")].count("\n    ") <= 30
