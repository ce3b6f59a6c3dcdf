"""Which engine is taken: models that cannot be stacked fall back to the loop."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch
from torch import Tensor, nn

from idiolect import methods
from idiolect.conformance.problem import Normed, network
from idiolect.data import Federation
from idiolect.engine import select
from idiolect.engine.stacked import MAX_DISTANCE, rounding
from idiolect.errors import UserError
from tests.conftest import ENGINES, SmallNet, ragged_federation, run, simulation
from tests.engine.engines import LOCAL, RAGGED
from tests.engine.test_stacked import Grouped, Scaled
from tests.methods.plain import TINY, assert_same, seeded


class Packed(nn.Module):
    """Sequences of different length, packed."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 6, batch_first=True)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.full((len(x),), 7)
        packed = nn.utils.rnn.pack_padded_sequence(x.squeeze(1), lengths, batch_first=True)
        out: Tensor = self.head(self.lstm(packed)[1][0][0])
        return out


class Branching(nn.Module):
    """What it computes depends on the numbers it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        if float(h.detach().sum()) > 0:
            h = h * 2
        out: Tensor = self.head(torch.tanh(h))
        return out


class PartOfSequence(nn.Module):
    """Takes single layers out of a sequence, whose order our layers change."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = nn.Sequential(nn.ReLU(), nn.MaxPool2d(1)), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.block[0](x))
        return out


@pytest.mark.parametrize(
    ("kind", "federation"),
    [(Packed, RAGGED), (Branching, TINY), (PartOfSequence, TINY)],
    ids=["packed", "branching", "part of a sequence"],
)
def test_what_cannot_be_stacked_falls_back_with_one_warning(
    kind: type[nn.Module], federation: Federation
) -> None:
    net = seeded(kind)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fallen = run(methods.build(LOCAL), federation, net, 2, engine="stacked")
    messages = [str(w.message) for w in seen if "batching rule" not in str(w.message)]
    assert len(messages) == 1, messages
    assert "cannot be stacked" in messages[0]
    assert "loop engine" in messages[0]
    assert fallen.engine.name == "loop"
    plain = run(methods.build(LOCAL), federation, net, 2, engine="loop")
    for i in range(federation.n_clients):
        assert_same(fallen.personal_model(i), plain.personal_model(i), 0)


class MiddleOfSequence(nn.Module):
    """What its pooling sees is shown to a second branch too, which counts little."""

    def __init__(self, share: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.side, self.head, self.share = nn.Linear(4, 5), nn.Linear(100, 5), share

    def forward(self, x: Tensor) -> Tensor:
        h = self.body[:2](x)
        out: Tensor = self.head(self.body[2:](h)) + self.share * self.side(h.amin((2, 3)))
        return out


@pytest.mark.parametrize(("dtype", "share"), [("float32", 1e-2), ("float64", 1e-7)])
def test_a_small_difference_of_values_is_noticed(dtype: str, share: float) -> None:
    """Rounding is no excuse for it, in this type."""
    net = seeded(lambda: MiddleOfSequence(share)).to(select.compute_dtype(dtype))  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="other values in a stack"):
        sim = simulation(methods.build(LOCAL), RAGGED, net, 1, dtype=dtype)
    assert sim.engine.name == "loop"


def test_how_far_outputs_may_be_off_depends_on_the_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    for allowed, found in ((True, "tf32"), (False, "float32")):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
        assert rounding(torch.float32, None, gpu) == found
        assert rounding(torch.float32, None, cpu) == "float32"
        assert rounding(torch.float64, None, gpu) == "float64"
        assert rounding(torch.float32, torch.bfloat16, gpu) == "bfloat16"
    assert set(MAX_DISTANCE) == {"bfloat16", "tf32", "float32", "float64"}


def test_what_can_be_stacked_is_stacked_without_a_word() -> None:
    for kind in (SmallNet, Grouped, Scaled, lambda: SmallNet(norm=True, drop=0.2)):
        sim = simulation(methods.build("local"), RAGGED, seeded(kind), 1)  # type: ignore[arg-type]
        assert sim.engine.name == "stacked"


def test_a_first_round_imports_nothing_it_does_not_need() -> None:
    """Symbolic maths and decoders of files take longer to import than a small round to compute."""
    program = """
import sys, torch
from idiolect import methods
from idiolect.data import Federation
from idiolect.simulation.simulation import Simulation
part = {"x": torch.rand(8, 6), "y": torch.arange(8) % 3}
clients = [{f"{v}_{p}": part[v] for v in "xy" for p in ("train", "test")} for _ in range(3)]
net = torch.nn.Sequential(torch.nn.Linear(6, 3))
federation = Federation.from_arrays(clients)
Simulation(methods.build("fedavg"), federation, net, rounds=1, device="cpu").step()
print([m for m in ("sympy", "PIL", "pyarrow", "sklearn", "pandas") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize("name", ["fedfomo", "fedala", "l2c"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_sample_that_a_method_leaves_alone_for_batch_norm_is_told(name: str, engine: str) -> None:
    """Clients of two samples: one is set apart, and BatchNorm is left with the other."""
    sim = simulation(methods.build(name), ragged_federation((2, 9)), network(Normed), engine=engine)
    with pytest.raises(UserError, match=r"one sample to train on.*BatchNorm; raise split"):
        for _ in range(3):
            sim.step()
