"""Adapters: which parts train, what a layer of low rank computes, and how it merges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from idiolect import models
from idiolect.core.net import Net
from idiolect.errors import UserError

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 4), (3, 6)),
    "sequence": (lambda: nn.Linear(6, 4, bias=False), (3, 5, 6)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1), (2, 3, 8)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1, dilation=2), (2, 3, 9, 9)),
    "circular": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (2, 3, 6, 6)),
    "pointwise": (lambda: nn.Conv2d(3, 4, 1), (2, 3, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 4, 2), (2, 2, 4, 4, 4)),
}


def moved(layer: nn.Module, rank: int = 2) -> nn.Module:
    """The layer with adapters that do something."""
    made = models.adapted(layer.double(), f"lora:{rank}")
    with torch.no_grad():
        for p in made.parameters():
            if p.requires_grad:
                p.copy_(torch.randn_like(p))
    return made


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_what_its_merged_weights_compute(name: str) -> None:
    kind, shape = LAYERS[name]
    torch.manual_seed(0)
    plain = kind()
    made, x = moved(plain), torch.randn(shape, dtype=torch.float64)
    assert not torch.allclose(made(x), plain(x))
    plain.load_state_dict(models.merged(made.state_dict()))
    torch.testing.assert_close(made(x), plain(x), rtol=1e-12, atol=1e-12)
    started = models.adapted(plain, "lora:2")
    assert torch.equal(started(x), plain(x))  # nothing changes before anything is learnt


def test_an_embedding_keeps_its_padding() -> None:
    torch.manual_seed(0)
    plain = nn.Embedding(7, 4, padding_idx=3).double()
    made, x = models.adapted(plain, "lora:2"), torch.tensor([[0, 3, 6]])
    made(x).sum().backward()
    assert not made.lora_rows.grad[3].any() and made.lora_rows.grad[0].any()  # type: ignore[union-attr,index]
    with torch.no_grad():
        made.lora_rows.normal_()  # type: ignore[operator, union-attr]
        made.lora_rows[3] = 0  # type: ignore[index]
    plain.load_state_dict(models.merged(made.state_dict()))
    torch.testing.assert_close(made(x), plain(x), rtol=1e-12, atol=1e-12)


CALLS: dict[str, dict[str, Any]] = {
    "weights": {},
    "no weights": {"need_weights": False},
    "each head": {"average_attn_weights": False},
    "causal": {"attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(1), "need_weights": False},
    "added": {"attn_mask": torch.randn(5, 5, dtype=torch.float64)},
    "each sample": {"attn_mask": torch.randn(6, 5, 5, dtype=torch.float64)},
    "padding": {"key_padding_mask": torch.tensor([[False] * 4 + [True]] * 3)},
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("first", [True, False])
def test_attention_computes_what_its_merged_weights_compute(call: str, first: bool) -> None:
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(8, 2, batch_first=first).double()
    made = moved(plain)
    plain.load_state_dict(models.merged(made.state_dict()))
    shape = (3, 5, 8) if first else (5, 3, 8)
    q, k, v = torch.randn(3, *shape, dtype=torch.float64).unbind()
    for given in ((q, q, q), (q, k, v)):
        for ours, theirs in zip(
            made(*given, **CALLS[call]), plain(*given, **CALLS[call]), strict=True
        ):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_attention_on_one_sample() -> None:
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(8, 2).double()
    made, x = moved(plain), torch.randn(5, 8, dtype=torch.float64)
    plain.load_state_dict(models.merged(made.state_dict()))
    for ours, theirs in zip(made(x, x, x), plain(x, x, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_predictions_of_an_encoder_see_the_adapters() -> None:
    """PyTorch has a fast way of inference that reads the plain weights."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    plain = nn.TransformerEncoder(layer, 2).double().eval()
    made, x = moved(plain).eval(), torch.randn(3, 5, 8, dtype=torch.float64)
    away = torch.tensor([[False] * 5, [False] * 4 + [True], [False] * 5])
    before = plain(x)
    plain.load_state_dict(models.merged(made.state_dict()))
    with torch.no_grad():
        assert not torch.allclose(made(x), before)
        for how in ({}, {"src_key_padding_mask": away}):
            ours, theirs = made(x, **how), plain(x, **how)
            torch.testing.assert_close(ours[0], theirs[0], rtol=1e-9, atol=1e-10)


class Zoo(nn.Module):
    """One layer of each kind that may be adapted."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.deep = nn.Conv2d(4, 4, 3, groups=4)
        self.mix, self.tied = nn.Linear(4, 4), nn.Linear(4, 4)
        self.tied.weight = self.mix.weight
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.deep(self.norm(self.conv(x)).relu()).mean((2, 3))
        out: Tensor = self.head(torch.tanh(self.tied(torch.tanh(self.mix(h)))))
        return out


@pytest.mark.parametrize(
    ("spec", "trained"),
    [
        ("lora:2", {"conv.lora_down", "conv.lora_up", "head.lora_down", "head.lora_up"}),
        ("lora:2,head", {"conv.lora_down", "conv.lora_up", "head.weight", "head.bias"}),
        ("bias", {"conv.bias", "norm.bias", "deep.bias", "mix.bias", "tied.bias", "head.bias"}),
        ("norm", {"norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"}),
        ("head, norm", {*(f"norm.{n}" for n in ("weight", "bias", "running_mean", "running_var")),
                        "head.weight", "head.bias"}),
    ],
)  # fmt: skip
def test_what_trains(spec: str, trained: set[str]) -> None:
    """Grouped convolutions, and layers that share a weight, have no room for an adapter. Statistics
    of a frozen norm neither move nor travel."""
    plain = Zoo()
    made = models.adapted(plain, spec)
    assert set(Net(made).names) == trained
    assert all(p.requires_grad for p in plain.parameters())  # the module itself stays
    assert set(plain.state_dict()) == set(models.merged(made.state_dict()))


def test_a_frozen_norm_uses_its_statistics_in_training() -> None:
    torch.manual_seed(0)
    plain = Zoo().double()
    plain.train()(torch.randn(4, 1, 8, 8, dtype=torch.float64))  # so that statistics are its own
    made, x = models.adapted(plain, "lora:1").train(), torch.randn(1, 1, 8, 8, dtype=torch.float64)
    before = {n: v.clone() for n, v in made.state_dict().items()}
    torch.testing.assert_close(made(x), plain.eval()(x), rtol=1e-12, atol=1e-12)
    assert all(torch.equal(v, before[n]) for n, v in made.state_dict().items())


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("lora", "'lora' is not a part; as in lora:8"),
        ("lora:0", "rank of lora must be at least 1"),
        ("lora:x", "'lora:x' is not a part"),
        ("bias:3", "'bias:3' is not a part"),
        ("lara:8", r"part of model\.adapt 'lara:8'"),
        ("", r"part of model\.adapt"),
    ],
)
def test_what_is_no_part_is_told_in_one_line(spec: str, told: str) -> None:
    with pytest.raises(UserError, match=told) as error:
        models.adapted(Zoo(), spec)
    assert "\n" not in str(error.value)


def test_a_model_without_such_a_part() -> None:
    with pytest.raises(UserError, match=r"model\.adapt=norm: the model has no such part"):
        models.adapted(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), "norm")
    with pytest.raises(UserError, match="no linear layer, convolution, embedding or attention"):
        models.adapted(nn.Sequential(nn.BatchNorm1d(3)), "lora:2")


def test_built_by_a_section() -> None:
    section = {"name": "mlp", "hidden": 8, "adapt": "lora:2,head"}
    made = models.build(section, (4,), 3, seed=1)
    assert set(Net(made).weights) == {
        *("body.1.lora_down", "body.1.lora_up", "head.weight", "head.bias")
    }
    again = models.build(section, (4,), 3, seed=1)
    assert all(torch.equal(v, again.state_dict()[n]) for n, v in made.state_dict().items())
    whole = models.build(models.plain(section), (4,), 3, seed=1)  # the same base
    assert all(torch.equal(v, made.state_dict()[n]) for n, v in whole.state_dict().items())
    assert models.resolved(section, (4,)) == {**section, "layers": 1}
    assert "adapt" not in models.resolved({"name": "mlp"}, (4,))
    with pytest.raises(UserError, match=r"model\.adapt"):
        models.resolved({"name": "mlp", "adapt": "lora"}, (4,))
