"""The stacked engine gives the numbers of the loop, on every kind of model and data."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from idiolect import methods
from idiolect.core import tree
from idiolect.core.method import cross_entropy
from idiolect.data import Federation
from idiolect.engine.samples import Samples
from idiolect.engine.stacked import StackedEngine
from tests.conftest import SmallNet, ragged_federation, simulation
from tests.engine.engines import LOCAL, RAGGED, assert_agree, both, local_of, stacked
from tests.methods.plain import NET, START, assert_same, draw_clients, federate, seeded


class Grouped(nn.Module):
    """GroupNorm, strided and padded convolutions, one of them grouped."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1),
            nn.GroupNorm(2, 4),
            nn.ReLU(),
            nn.Conv2d(4, 8, 3, groups=2, padding="same"),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


class Tokens(nn.Module):
    """An embedding; its inputs are whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.embed(x.long()).mean(1))
        return out


class Scaled(nn.Module):
    """No attribute called head; a parameter of its own that is a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.mix = nn.Linear(12, 12)
        self.out = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.squeeze(1)
        attention = torch.softmax(self.scale * self.mix(rows) @ rows.mT, -1)
        out: Tensor = self.out((attention @ rows).mean(1))
        return out


class Attention(nn.Module):
    """PyTorch's own attention, which takes a fast path of its own outside training."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(12, 2, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.squeeze(1)
        out: Tensor = self.head(self.mix(rows, rows, rows)[0].mean(1))
        return out


@pytest.mark.parametrize(
    "kind",
    [
        SmallNet,
        Grouped,
        Scaled,
        Attention,
    ],
)
def test_engines_agree_on(kind: type[nn.Module]) -> None:
    assert_agree(*both(seeded(kind), RAGGED, LOCAL))


def test_scalar_parameters_are_averaged() -> None:
    one, other = both(seeded(Scaled), RAGGED, {**LOCAL, "name": "fedavg"})
    assert one.server["model"]["scale"].shape == ()
    assert_agree(one, other)


def test_embeddings_of_whole_numbers() -> None:
    rng = np.random.default_rng(0)
    parts = [
        {
            f"{v}_{p}": rng.integers(0, 11, (n, 4)) if v == "x" else rng.integers(0, 3, n)
            for v in "xy"
            for p in ("train", "test")
        }
        for n in (6, 9, 5)
    ]
    federation = Federation.from_arrays(parts, classes=3)
    net = seeded(Tokens)
    one, other = both(net, federation, LOCAL)
    assert_agree(one, other)
    unused = torch.ones(11, dtype=torch.bool)
    unused[torch.as_tensor(parts[0]["x_train"]).flatten()] = False
    rows = one.personal_model(0)["embed.weight"] - net.state_dict()["embed.weight"]
    assert float(rows[unused].abs().max()) == 0
    assert float(rows[~unused].abs().min(0).values.max()) > 0


def test_batchnorm_engines_agree() -> None:
    assert_agree(*both(seeded(lambda: SmallNet(norm=True)), RAGGED, LOCAL), tol=1e-8)  # type: ignore[arg-type]


def test_single_precision() -> None:
    net = seeded(lambda: SmallNet(smooth=True)).float()  # type: ignore[arg-type]
    one, other = both(net, RAGGED, LOCAL, dtype="float32")
    assert one.personal_model(0)["head.weight"].dtype == torch.float32
    assert_agree(one, other, 1e-5)


def test_engines_agree_on_very_different_sizes() -> None:
    federation = federate(draw_clients((2, 40, 3, 600, 17, 1100)))
    assert_agree(*both(NET, federation, {**LOCAL, "batch_size": "full"}, rounds=1))
    assert_agree(*both(NET, federation, {**LOCAL, "batch_size": 16, "epochs": 1}, rounds=1))


def test_order_and_company_of_clients_do_not_matter() -> None:
    """A client's training is its own: alone, or in a stack with others in any order."""
    settings = {"lr": 0.1, "batch_size": 4, "epochs": 2}
    together = local_of("stacked", [0, 1, 2, 3]).sgd(cross_entropy, stacked(START, 4), **settings)
    for ids in ([2], [3, 1], [1, 3, 0]):
        some = local_of("stacked", ids).sgd(cross_entropy, stacked(START, len(ids)), **settings)
        for k, i in enumerate(ids):
            assert_same(tree.client(some.params, k), tree.client(together.params, i), 1e-13)


@pytest.mark.parametrize("name", ["fedavg", "fedas", "feddwa", "per_fedavg"])
@pytest.mark.parametrize("norm", [False, True])
def test_convolutions_on_a_cpu_go_client_by_client(
    name: str, norm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """… if they are large; small ones, and networks without them, stay wide."""
    data, model = ragged_federation(), SmallNet(norm=norm)
    method = methods.build({"name": name, "lr": 0.05})
    wide = simulation(method, data, model)
    monkeypatch.setattr(StackedEngine, "narrow_on_cpu", True)
    assert not simulation(method, data, model).engine.alone("train", "full")
    monkeypatch.setattr("idiolect.engine.stacked.MIN_ACTIVATION_BYTES_TO_NARROW", 1)
    narrow = simulation(method, data, model)
    assert not wide.engine.alone("train", 1) and narrow.engine.alone("train", 1)
    flat = simulation(method, data, nn.Sequential(nn.Flatten(), nn.Linear(144, 5)))
    assert not flat.engine.alone("train", 1)
    for _ in range(3):
        one, other = wide.step(), narrow.step()
        for column in one.clients:
            np.testing.assert_allclose(one.clients[column], other.clients[column], rtol=1e-7)
    for leaf, value in wide.state()[0].items():
        ours = narrow.state()[0][leaf]
        torch.testing.assert_close(ours, value, rtol=1e-7, atol=1e-9, equal_nan=True)


def test_large_batches_on_a_cpu_go_client_by_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the network, and without filling; the same batch in every step is gathered once."""
    torch.manual_seed(0)
    data, sizes = ragged_federation((9, 30, 12)), (9, 30, 12)
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 16), nn.Sigmoid(), nn.Linear(16, 5)).double()
    method = methods.build({"name": "fedper", "lr": 0.1, "batch_size": "full", "epochs": 4})
    wide = simulation(method, data, model)
    monkeypatch.setattr(StackedEngine, "narrow_on_cpu", True)
    at_20_samples = 20 * 8 * (144 + 16) // 2  # what the two layers that matter leave, on average
    monkeypatch.setattr("idiolect.engine.stacked.MIN_TENSOR_BYTES_TO_NARROW", at_20_samples)
    chosen = simulation(method, data, model)
    assert not any(wide.engine.alone("train", size) for size in (10, 20, "full"))
    assert [chosen.engine.alone("train", size) for size in (10, 20, "full")] == [False, True, True]
    widths: list[tuple[int, ...]] = []
    gathered = Samples.inputs
    monkeypatch.setattr(
        Samples, "inputs", lambda self, at: (widths.append(tuple(at.shape)), gathered(self, at))[1]
    )
    for sim in (wide, chosen):
        widths.clear()
        sim.step()
        sim.step()
    assert [w for w in widths if w[0] == 1] == [(1, size) for size in sizes] * 2
    for leaf, value in wide.state()[0].items():
        torch.testing.assert_close(
            chosen.state()[0][leaf], value, rtol=1e-9, atol=1e-12, equal_nan=True
        )


class Shifting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(0.5).add_(0.1)


@pytest.mark.parametrize("size", ["full", 8])
def test_a_network_may_write_into_its_inputs(size: object, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Shifting(), nn.Flatten(), nn.Linear(144, 5)).double()
    method = methods.build({"name": "fedavg", "lr": 0.1, "batch_size": size, "epochs": 3})
    ends = []
    for engine, narrow in (("loop", False), ("stacked", False), ("stacked", True)):
        monkeypatch.setattr(StackedEngine, "narrow_on_cpu", narrow)
        monkeypatch.setattr("idiolect.engine.stacked.MIN_TENSOR_BYTES_TO_NARROW", 1)
        sim = simulation(method, ragged_federation((9, 30, 12)), model, engine=engine)
        sim.step()
        sim.step()
        ends.append(sim.state()[0])
    for end in ends[1:]:
        for leaf, value in ends[0].items():
            torch.testing.assert_close(end[leaf], value, rtol=1e-9, atol=1e-12, equal_nan=True)


class Reader(nn.Module):
    """A recurrent layer over the rows of an image, then a head."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cells = kind(12, 6, batch_first=True)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.cells(x.flatten(1, 2))[0][:, -1])
        return out


@pytest.mark.parametrize(("kind", "alone"), [(nn.LSTM, True), (nn.GRU, False)])
def test_lstms_are_computed_client_by_client_on_a_cpu(
    kind: type[nn.Module], alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch has one kernel for a whole LSTM there; the numbers are those of the stack."""
    torch.manual_seed(0)
    model, data = Reader(kind).double(), ragged_federation((9, 17, 12))
    method = methods.build({"name": "fedavg", "batch_size": 8})
    wide = simulation(method, data, model)
    monkeypatch.setattr(StackedEngine, "narrow_on_cpu", True)
    chosen = simulation(method, data, model)
    assert not wide.engine.narrow and chosen.engine.narrow == alone
    wide.step()
    chosen.step()
    for leaf, value in wide.state()[0].items():
        torch.testing.assert_close(
            chosen.state()[0][leaf], value, rtol=1e-9, atol=1e-12, equal_nan=True
        )
