"""Networks people train today are stacked, without a word, and give the numbers of the loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idiolect import methods
from idiolect.core.method import Down, cross_entropy
from idiolect.data import Federation
from idiolect.deploy.client_requests import ExpectedReply
from idiolect.deploy.sample_kind import SampleKind
from idiolect.engine import cuda_graphs
from idiolect.engine.cuda_graphs import CapturedSteps
from idiolect.errors import UserError
from idiolect.simulation.side_by_side import Sweep
from tests.conftest import ragged_federation, run, simulation
from tests.engine.engines import LOCAL, assert_agree
from tests.methods.plain import seeded

IMAGES = ragged_federation((9, 12, 5, 14, 8))  # 1 x 12 x 12
SHORT = {**LOCAL, "batch_size": 4, "epochs": 1}
WORDS = 11


def sentences(dtype: Any = np.int64) -> Federation:
    rng = np.random.default_rng(0)

    def part(n: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.integers(0, WORDS, (n, 6)).astype(dtype), rng.integers(0, 5, n)

    clients = []
    for n in (9, 12, 5):
        (x, y), (x_test, y_test) = part(n), part(6)
        clients.append({"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test})
    return Federation.from_arrays(clients, classes=5)


class OnRows(nn.Module):
    """The rows of an image as a sequence of 12 steps of 12 values: `mix`, then their mean."""

    def __init__(self, mix: nn.Module, width: int = 12):
        super().__init__()
        self.mix, self.head = mix, nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        out = self.mix(x.squeeze(1))
        first: Tensor = out[0] if isinstance(out, tuple) else out
        logits: Tensor = self.head(first.mean(1))
        return logits


class Images(nn.Module):
    """Layers on images (or, with `rows`, on their rows), averaged over all places."""

    def __init__(self, width: int, *layers: nn.Module, view: tuple[int, ...] = (1, 12, 12)):
        super().__init__()
        self.view, self.body, self.head = view, nn.Sequential(*layers), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x.reshape(-1, *self.view))
        logits: Tensor = self.head(h.flatten(2).mean(2))
        return logits


class Attention(nn.Module):
    """Attention of one's own by PyTorch's function, with options of it."""

    def __init__(self, **options: Any):
        super().__init__()
        self.qkv, self.out, self.options = nn.Linear(12, 36), nn.Linear(12, 12), options

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 6)).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, **self.options)
        out: Tensor = self.out(h.transpose(1, 2).flatten(2))
        return out


class Masked(Attention):
    """The mask depends on the sample."""

    def forward(self, x: Tensor) -> Tensor:
        far = (x.detach().mean(-1) > 1)[:, None, None, :]
        self.options = {"attn_mask": torch.where(far, -1e9, 0.0).to(x.dtype)}
        return super().forward(x)


class SharedKeys(nn.Module):
    """Queries of the client, keys and values the same for all: a mask of truth values; one head."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(12, 12)
        self.register_buffer("memory", torch.randn(7, 12))
        self.register_buffer("allowed", torch.rand(12, 7) < 0.8)

    def forward(self, x: Tensor) -> Tensor:
        memory = self.memory.detach().clone()  # type: ignore[operator]
        return F.scaled_dot_product_attention(
            self.q(x), memory.expand(len(x), 7, 12), memory.expand(len(x), 7, 12), self.allowed
        )


class SelfAttention(nn.Module):
    def __init__(self, need_weights: bool, **options: Any):
        super().__init__()
        self.mix = nn.MultiheadAttention(12, 2, batch_first=True, **options)
        self.need_weights = need_weights

    def forward(self, x: Tensor) -> Tensor:
        skip = x.mean(-1) > 1.5  # padding
        out: Tensor = self.mix(x, x, x, key_padding_mask=skip, need_weights=self.need_weights)[0]
        return out


class Text(nn.Module):
    """Word embeddings (with padding), a layer on them, and the same embedding again at the end."""

    def __init__(self, mix: nn.Module, width: int, **options: Any):
        super().__init__()
        self.embed, self.mix = nn.Embedding(WORDS, 8, **options), mix
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        out = self.mix(self.embed(x))
        h: Tensor = out[0] if isinstance(out, tuple) else out
        logits: Tensor = self.head(h.mean(1))
        return logits


class FrozenConvolutions(nn.Module):
    """Convolutions that do not train, one of them in one dimension, and a trained layer."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.body = nn.Conv1d(12, 12, 3, padding=1), nn.Conv2d(1, 12, (3, 12))
        for p in [*self.flat.parameters(), *self.body.parameters()]:
            p.requires_grad_(False)
        self.mix = nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.flat(self.mix(x)))
        out: Tensor = self.body(h[:, None])[..., 0].mT
        return out


class LowRank(nn.Module):
    """A frozen layer with a trained difference of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(12, 12)
        for p in self.base.parameters():
            p.requires_grad_(False)
        self.down, self.up = nn.Linear(12, 2, bias=False), nn.Linear(2, 12, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.tanh(self.base(x) + self.up(self.down(x)))
        return out


class Stateful(nn.Module):
    """Starts from a given state and uses the last one."""

    def __init__(self, kind: type[nn.RNNBase]):
        super().__init__()
        self.rnn = kind(12, 6, batch_first=True)
        self.start = nn.Linear(12, 6)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.squeeze(1)
        h = torch.tanh(self.start(rows[:, 0]))[None]
        state = (h, 0.5 * h) if isinstance(self.rnn, nn.LSTM) else h
        last = self.rnn(rows, state)[1]
        out: Tensor = self.head((last[0] * last[1] if isinstance(last, tuple) else last)[0])
        return out


def recurrent(kind: type[nn.RNNBase], width: int, **options: Any) -> Callable[[], nn.Module]:
    return lambda: OnRows(kind(12, 6, batch_first=True, **options), width)


def encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(12, 2, 16, dropout=0.0, batch_first=True, **options)


SEQUENCES: dict[str, Callable[[], nn.Module]] = {
    "gru": recurrent(nn.GRU, 6),
    "gru, both ways, two layers": recurrent(nn.GRU, 12, bidirectional=True, num_layers=2),
    "gru, no bias": recurrent(nn.GRU, 6, bias=False),
    "lstm": recurrent(nn.LSTM, 6),
    "lstm, both ways, two layers": recurrent(nn.LSTM, 12, bidirectional=True, num_layers=2),
    "lstm, projected": recurrent(nn.LSTM, 4, proj_size=4, num_layers=2),
    "rnn": recurrent(nn.RNN, 6),
    "rnn, relu, two layers": recurrent(nn.RNN, 6, nonlinearity="relu", num_layers=2),
    "gru, time first": lambda: OnRows(nn.GRU(12, 6), 6),
    "gru with a state": lambda: Stateful(nn.GRU),
    "lstm with a state": lambda: Stateful(nn.LSTM),
    "attention": lambda: OnRows(Attention()),
    "attention, causal": lambda: OnRows(Attention(is_causal=True)),
    "attention, scaled": lambda: OnRows(Attention(scale=0.3)),
    "attention, masked": lambda: OnRows(Masked()),
    "attention, shared keys": lambda: OnRows(SharedKeys()),
    "multihead": lambda: OnRows(SelfAttention(False)),
    "multihead with weights": lambda: OnRows(SelfAttention(True)),
    "multihead with biases": lambda: OnRows(SelfAttention(False, add_bias_kv=True)),
    "encoder layer": lambda: OnRows(encoder()),
    "encoder layer, norm first": lambda: OnRows(encoder(norm_first=True)),
    "encoder": lambda: OnRows(nn.TransformerEncoder(encoder(), 2, enable_nested_tensor=False)),
    "layer norm": lambda: OnRows(nn.Sequential(nn.Linear(12, 12), nn.LayerNorm(12))),
    "rms norm": lambda: OnRows(nn.Sequential(nn.Linear(12, 12), nn.RMSNorm(12))),
    "frozen convolutions": lambda: OnRows(FrozenConvolutions()),
    "low rank": lambda: OnRows(LowRank()),
    "conv1d": lambda: Images(
        6, nn.Conv1d(12, 6, 3, padding=1, stride=2), nn.GELU(), nn.Conv1d(6, 6, 3, groups=3),
        view=(12, 12),
    ),
}  # fmt: skip

PLACES: dict[str, Callable[[], nn.Module]] = {
    "depthwise": lambda: Images(
        8, nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3, groups=8, padding=1), nn.SiLU()
    ),
    "grouped": lambda: Images(
        8, nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3, groups=2, dilation=2, bias=False), nn.Tanh()
    ),
    "circular": lambda: Images(4, nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular")),
    "transposed": lambda: Images(4, nn.ConvTranspose2d(1, 4, 3, stride=2), nn.Tanh()),
    "conv3d": lambda: Images(4, nn.Conv3d(1, 4, 3, padding=1), nn.Tanh(), view=(1, 3, 4, 12)),
    "group norm": lambda: Images(8, nn.Conv2d(1, 8, 3), nn.GroupNorm(4, 8), nn.ReLU()),
    "batch norm": lambda: Images(8, nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
    "batch norm, not affine": lambda: Images(
        8, nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8, affine=False), nn.ReLU()
    ),
    "batch norm, one axis": lambda: Images(12, nn.BatchNorm1d(12), view=(12, 12)),
    "instance norm": lambda: Images(
        8, nn.Conv2d(1, 8, 3, bias=False), nn.InstanceNorm2d(8, affine=True), nn.ReLU()
    ),
}

TEXTS: dict[str, Callable[[], nn.Module]] = {
    "embedding": lambda: Text(nn.Identity(), 8),
    "embedding with padding": lambda: Text(nn.Identity(), 8, padding_idx=3),
    "text gru": lambda: Text(nn.GRU(8, 6, batch_first=True), 6, padding_idx=0),
    "text transformer": lambda: Text(
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 8
    ),
}


@pytest.fixture(autouse=True)
def _capture_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "MIN_STEPS_TO_CAPTURE", 1)


def agree(kind: Callable[[], nn.Module], federation: Federation, **settings: Any) -> None:
    net = seeded(kind)  # type: ignore[arg-type]
    method = methods.build({**SHORT, **settings})
    loop = run(method, federation, net, 2, engine="loop")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="LSTM with projections")
        stacked = run(method, federation, net, 2, engine="stacked")
        captured = simulation(method, federation, net, 2)  # as on a GPU
        captured.engine.captured_steps = steps = CapturedSteps(captured.engine.samples)
        captured.step()
        captured.step()
    assert stacked.engine.name == "stacked"
    assert steps.captured
    start, end = net.state_dict(), loop.personal_model(0)
    still = [n for n in loop.engine.net.weights if torch.equal(start[n].double(), end[n])]
    assert not still, f"{still} did not train"
    assert_agree(loop, stacked)
    assert_agree(loop, captured)


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # PyTorch's, on a CPU
@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences(name: str) -> None:
    agree(SEQUENCES[name], IMAGES)


@pytest.mark.parametrize("name", PLACES)
def test_places(name: str) -> None:
    agree(PLACES[name], IMAGES)


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str) -> None:
    agree(TEXTS[name], sentences())


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("keep", ["device", "host"])
def test_tokens_stay_whole_numbers_up_to_the_network(engine: str, keep: str) -> None:
    seen = []

    class Watched(Text):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.dtype)
            return super().forward(x)

    federation = sentences(np.int32)
    assert federation.x.dtype == torch.int64
    net = seeded(lambda: Watched(nn.Identity(), 8))  # type: ignore[arg-type]
    sim = simulation(methods.build(SHORT), federation, net, 1, engine=engine, keep=keep)
    seen.clear()
    sim.step()
    assert set(seen) == {torch.int64}


def test_networks_without_tokens_see_whole_numbers_as_floating_point() -> None:
    agree(lambda: nn.Sequential(nn.Linear(6, 5)), sentences())


def test_a_token_the_embedding_does_not_have_is_named() -> None:
    net = seeded(lambda: Text(nn.Identity(), 8))  # type: ignore[arg-type]
    federation = sentences()
    federation.x[0, 0] = 99
    with pytest.raises(UserError, match="tokens up to 99"):
        simulation(methods.build(SHORT), federation, net, 1)


@pytest.mark.parametrize("form", ["first_order", "exact"])
@pytest.mark.parametrize("name", ["gru", "lstm", "attention, causal", "attention, masked"])
def test_second_order_methods(name: str, form: str) -> None:
    agree(SEQUENCES[name], IMAGES, name="per_fedavg", form=form)


@pytest.mark.parametrize("name", ["gru", "attention", "multihead"])
def test_squared_gradients_of_every_sample(name: str) -> None:
    net = seeded(SEQUENCES[name])  # type: ignore[arg-type]
    found = []
    for engine in ("loop", "stacked"):
        sim = simulation(methods.build("local"), IMAGES, net, 1, engine=engine)
        found.append(_squares(sim))
    assert torch.allclose(*found, rtol=1e-9, atol=0)


def _squares(sim: Any) -> Tensor:
    def of(k: int, ids: list[int]) -> Tensor:
        start = {n: v.expand(k, *v.shape).clone() for n, v in sim.start_tree.items()}
        local = sim.engine.local(ids, 0)
        done: Tensor = local.squared_grad(cross_entropy, start, per_sample=True, batch_size=4)[0]
        return done

    if sim.engine.name == "stacked":
        return of(3, [0, 1, 2])
    return torch.cat([of(1, [i]) for i in (0, 1, 2)])


def test_seeds_in_one_stack() -> None:
    method = methods.build(SHORT)
    net, federation = seeded(TEXTS["text gru"]), sentences()  # type: ignore[arg-type]
    alone, joined = (
        [simulation(method, federation, net, 2, seed=seed) for seed in (0, 1)] for _ in range(2)
    )
    together = Sweep(joined)
    for _ in range(2):
        together.step()
        for sim in alone:
            sim.step()
    for one, other in zip(alone, joined, strict=True):
        assert_agree(one, other)


def test_a_real_site_with_tokens() -> None:
    """The server makes up samples to learn what answers look like: of the kind the model takes."""
    net = seeded(TEXTS["text gru"]).float()  # type: ignore[arg-type]
    how = {"seed": 0, "device": torch.device("cpu"), "dtype": torch.float32}
    expected = ExpectedReply(methods.build("fedavg"), net, SampleKind((6,), 5), **how)
    start = {n: v.clone() for n, v in net.state_dict().items()}
    reply = expected.of_fit(Down(shared={"model": start}), start, 1)
    assert set(reply["up"]["model"]) == set(start)
