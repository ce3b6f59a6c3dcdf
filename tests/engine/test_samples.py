"""Samples as the network sees them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from idiolect import methods
from idiolect.data import Federation
from idiolect.engine import samples
from idiolect.engine.samples import Samples
from tests.conftest import ENGINES, ragged_federation, run, simulation
from tests.engine.engines import LOCAL, assert_agree
from tests.methods.plain import seeded


def test_bytes_are_scaled_and_normalised_per_channel() -> None:
    """uint8 with mean and std is the same data as floats normalised by hand."""
    rng = np.random.default_rng(0)
    mean, std = np.array([0.4, 0.5]), np.array([0.2, 0.3])
    raw, by_hand = [], []
    for n in (7, 10):
        x = {p: rng.integers(0, 256, (n, 2, 12, 12), dtype=np.uint8) for p in ("train", "test")}
        y = {p: rng.integers(0, 5, n) for p in ("train", "test")}
        labels = {f"y_{p}": y[p] for p in y}
        raw.append(labels | {f"x_{p}": v for p, v in x.items()})
        by_hand.append(
            labels
            | {f"x_{p}": (v / 255 - mean[:, None, None]) / std[:, None, None] for p, v in x.items()}
        )
    net = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(288, 6), nn.Tanh(), nn.Linear(6, 5)))  # type: ignore[arg-type]
    given = Federation.from_arrays(raw, classes=5, mean=mean, std=std)
    plain = Federation.from_arrays(by_hand, classes=5)
    for engine in ENGINES:
        a, b = (run(methods.build(LOCAL), f, net, 1, engine=engine) for f in (given, plain))
        assert_agree(a, b)


def byte_federation(classes: int = 5) -> Federation:
    rng = np.random.default_rng(0)
    clients = []
    for n in (7, 10):
        x = {f"x_{p}": rng.integers(0, 256, (n, 2, 12, 12), np.uint8) for p in ("train", "test")}
        y = {f"y_{p}": rng.integers(0, classes, n) for p in ("train", "test")}
        clients.append(x | y)
    mean, std = np.array([0.4, 0.5]), np.array([0.2, 0.3])
    return Federation.from_arrays(clients, classes=classes, mean=mean, std=std)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("plain", [False, True])
def test_inputs_normalised_beforehand_are_the_same_to_the_bit(
    dtype: torch.dtype, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gathering first and normalising then gives no other bit."""
    monkeypatch.setattr(samples, "ROWS_NORMALISED_AT_ONCE", 5)
    federation = byte_federation()
    if plain:  # bytes without mean and std
        federation = replace(federation, mean=None, std=None)
    gathered, prepared = (Samples(federation, torch.device("cpu"), dtype) for _ in range(2))
    prepared.normalise()
    assert prepared.x.dtype == dtype and prepared.storage_version == 1
    for at in (torch.arange(len(federation.x)), torch.tensor([[3, 3, 0], [9, 1, 16]])):
        assert torch.equal(prepared.inputs(at), gathered.inputs(at))
    assert federation.x.dtype == torch.uint8  # others read it too
    before = prepared.x
    prepared.normalise()
    assert prepared.x is before


def test_a_run_on_normalised_inputs_gives_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(288, 6), nn.Tanh(), nn.Linear(6, 5)))  # type: ignore[arg-type]
    ends = []
    for beforehand in (False, True):
        sim = simulation(methods.build(LOCAL), byte_federation(), net, 2, dtype="float32")
        monkeypatch.setattr(samples, "MAX_SHARE_FOR_NORMALISED", float(beforehand))
        sim.step()
        sim.step()
        assert (sim.engine.samples.x.dtype == torch.float32) == beforehand
        ends.append(sim.state()[0])
    for leaf, value in ends[0].items():
        assert torch.equal(value.nan_to_num(), ends[1][leaf].nan_to_num()), leaf


def test_on_a_cpu_inputs_are_normalised_once_that_many_were_gathered() -> None:
    """A run that sees few samples does not pay for all of them before its first round."""
    federation = ragged_federation((6, 6))
    samples = Samples(federation, torch.device("cpu"), torch.float32)
    stored = samples.x.dtype
    samples.prepare()
    assert samples.x.dtype == stored
    samples.inputs(torch.arange(len(samples.x)))
    samples.prepare()
    assert samples.x.dtype == torch.float32
