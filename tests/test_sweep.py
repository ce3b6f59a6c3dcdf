"""Seeds side by side give the numbers of separate runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from idiolect import federation, methods, models
from idiolect.rounds import Simulation
from idiolect.sweep import Sweep

SPLIT = {"name": "dirichlet", "clients": 6, "alpha": 0.5}


def one(name: str, seed: int, **options: object) -> Simulation:
    fed = federation.build({"name": "digits"}, SPLIT, seed)
    model = models.build({"name": "mlp"}, fed.shape, fed.classes, seed)
    section = {"name": name}
    fields = methods.REGISTRY[name].__dataclass_fields__
    section |= {k: v for k, v in {"tau": 4, "steps": 3}.items() if k in fields}
    settings = {"rounds": 3, "device": "cpu", "dtype": "float64", "participation": 0.7}
    return Simulation(methods.build(section), fed, model, seed=seed, **(settings | options))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["fedavg", "fedas", "feddwa", "pflego", "spfl", "plga"])
def test_equals_separate_runs(name: str) -> None:
    together = [one(name, s) for s in (0, 1, 2)]
    assert Sweep.fits(together)
    sweep = Sweep(together)
    rounds = [sweep.step() for _ in range(3)]
    for k, seed in enumerate((0, 1, 2)):
        alone = one(name, seed)
        for t in range(3):
            apart = alone.step()
            assert rounds[t][k].started == apart.started
            assert rounds[t][k].samples == apart.samples
            assert rounds[t][k].bytes_up == apart.bytes_up
            for column, values in apart.clients.items():
                np.testing.assert_allclose(
                    rounds[t][k].clients[column], values, rtol=1e-9, atol=1e-9, err_msg=column
                )
        ours = together[k].state()[0]
        for leaf, value in alone.state()[0].items():
            torch.testing.assert_close(ours[leaf], value, rtol=1e-9, atol=1e-10, equal_nan=True)


def test_different_methods_do_not_share_a_stack() -> None:
    assert not Sweep.fits([one("fedavg", 0), one("fedper", 0)])
    assert not Sweep.fits([one("fedavg", 0), one("fedavg", 1, engine="loop")])
