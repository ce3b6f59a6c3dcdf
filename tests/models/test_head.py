"""The head is the layer that makes the logits, in whatever order layers are registered."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from idiolect import simulate
from idiolect.core.net import Net
from idiolect.data import Federation
from idiolect.errors import UserError
from idiolect.models import build, check_fits, name_head


class HeadFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(5, 3)
        self.inner = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inner(x).relu())


class Scaled(HeadFirst):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_head_that_is_registered_first_is_found() -> None:
    for kind in (HeadFirst, Scaled):
        model = kind()
        assert Net(model).head == ("inner.weight", "inner.bias")  # nothing was seen yet
        check_fits(model, (4,), 3)
        net = Net(model)
        assert net.head == ("out.weight", "out.bias") and "inner.bias" in net.body
        params = {n: v.detach() for n, v in model.state_dict().items()}
        x = torch.randn(2, 4)
        assert net.features(params, x).shape == (2, 5)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_methods_that_need_no_head_take_a_network_without_one(engine: str) -> None:
    draw = np.random.default_rng(0)
    one = {f"x_{p}": draw.normal(size=(6, 1, 4, 4)).astype(np.float32) for p in ("train", "test")}
    fed = Federation.from_arrays([{**one, "y_train": [0, 1] * 3, "y_test": [1, 0] * 3}] * 2)
    model = nn.Sequential(nn.Conv2d(1, 2, 4), nn.Flatten())
    how = {"rounds": 1, "engine": engine, "device": "cpu"}
    assert simulate("fedavg", fed, model, **how).accuracy().shape == (2, 2)
    with pytest.raises(UserError, match="name its last layer 'head'"):
        simulate("fedper", fed, model, **how)


def test_no_mark_is_left_in_what_is_saved() -> None:
    model = HeadFirst()
    before = set(model.state_dict())
    check_fits(model, (4,), 3)
    assert set(model.state_dict()) == before and not model.out._forward_hooks


class TwoLast(HeadFirst):
    """The sum of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x).relu()
        return self.out(h) + self.other(h)


class Normed(HeadFirst):
    """Something with weights of its own comes after the last linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(super().forward(x))


class Cut(HeadFirst):
    """The layer makes more than is used."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(5, 7)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, :3]


class InPlace(HeadFirst):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu_(self.inner(x))).log_softmax(1)


class Frozen(HeadFirst):
    def __init__(self) -> None:
        super().__init__()
        self.inner.requires_grad_(False)
        self.out.weight.requires_grad_(False)


class Block(nn.Module):
    """A head of two layers in a block, and a convolution as head."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 5)
        self.top = nn.Sequential(nn.ReLU(), nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.scale * self.inner(x))


class HiddenHead(nn.Module):
    """A layer is called `head`, and something comes after it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 3), nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.inner(x).relu()) * self.scale
        return out


class Skipped(HiddenHead):
    """… or beside it."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.inner(x).relu()) + self.inner(x)
        return out


class Twice(HiddenHead):
    """… or it is part of the body, too."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.head(self.inner(x).relu()).relu())
        return out


@pytest.mark.parametrize("kind", [HiddenHead, Skipped, Twice])
def test_a_layer_called_head_that_is_not_last_is_no_head_to_compute_with(
    kind: type[nn.Module],
) -> None:
    """It can be personal. What a method computes by body and head was another model."""
    model = kind()
    check_fits(model, (4,), 3)
    net = Net(model)
    assert net.head == ("head.weight", "head.bias")
    params = {n: v.detach() for n, v in model.named_parameters()}
    for call in (net.features, net.classify):
        with pytest.raises(UserError, match="not what its layer 'head' makes alone"):
            call(params, torch.randn(2, 4))


class TwoNames(nn.Module):
    """The head has another name, which comes first, and is called by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(4, 5), nn.Linear(5, 3)
        self.head = self.out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(input=self.inner(x).relu())
        return out


def test_a_head_with_two_names_has_leaves() -> None:
    """FedPer kept nothing and was FedAvg."""
    model = TwoNames()
    check_fits(model, (4,), 3)
    net = Net(model)
    assert net.head == ("out.weight", "out.bias")
    params = {n: v.detach() for n, v in model.named_parameters()}
    x = torch.randn(2, 4)
    logits = net.classify(params, net.features(params, x))
    torch.testing.assert_close(logits, model(x).detach())


@pytest.mark.parametrize("kind", [InPlace, Frozen])
def test_the_layer_is_found_whatever_surrounds_it(kind: type[nn.Module]) -> None:
    model = kind()
    check_fits(model, (4,), 3)
    assert set(Net(model).head) <= {"out.weight", "out.bias"} and Net(model).head


@pytest.mark.parametrize("kind", [TwoLast, Normed, Cut])
def test_where_it_is_not_clear_methods_that_need_it_ask(kind: type[nn.Module]) -> None:
    model = kind()
    check_fits(model, (4,), 3)
    assert Net(model).names
    with pytest.raises(UserError, match=r"not clear which layer .*\(out.*model\.head=PATTERN"):
        _ = Net(model).head


def test_a_head_by_name() -> None:
    model = Block()
    for pattern, head in (
        ("top", "top."),
        ("top*", "top."),
        ("top.3", "top.3."),
        ("*.3", "top.3."),
    ):
        name_head(model, pattern)
        check_fits(model, (4,), 3)
        net = Net(model)
        assert net.head and all(n.startswith(head) for n in net.head)
        params = {n: v.detach() for n, v in model.state_dict().items()}
        x = torch.randn(2, 4)
        logits = net.classify(params, net.features(params, x))
        torch.testing.assert_close(logits, model(x).detach())
    for pattern, told in (
        ("tap", "did you mean 'top'"),
        ("[it]*", "fits inner, top; name one"),
        ("inner", "output is not what this layer makes"),
    ):
        model = Block()
        with pytest.raises(UserError, match=told):
            name_head(model, pattern)
            check_fits(model, (4,), 3)


def test_a_head_by_name_in_a_config(tmp_path: Path) -> None:
    """Of your own class, with arguments; the class keeps arguments of these names for itself."""
    file = tmp_path / "nets.py"
    file.write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, shape, classes, width=3, bias=True):\n"
        "        super().__init__()\n"
        "        self.conv = nn.Conv2d(shape[0], classes, shape[1:], bias=bias)\n"
        "        self.mix = nn.Linear(shape[-1], width)\n"
        "        self.back = nn.Linear(width, shape[-1])\n"
        "    def forward(self, x):\n"
        "        return {'logits': self.conv(self.back(self.mix(x))).flatten(1), 'width': 1}\n"
        "class Own(Net):\n"
        "    def __init__(self, shape, classes, head):\n"
        "        super().__init__(shape, classes, width=head)\n"
    )
    code = f"{file}:Net"
    section = {"name": code, "width": 5, "head": "conv"}
    with pytest.raises(UserError, match="output is not what this layer makes"):
        build(section, (1, 4, 4), 3, allow_code=[code])  # flattened after it
    net = build({**section, "head": ""}, (1, 4, 4), 3, allow_code=[code])
    assert net.mix.out_features == 5  # type: ignore[union-attr]
    own = build({"name": f"{file}:Own", "head": 7}, (1, 4, 4), 3, allow_code=[f"{file}:Own"])
    assert own.mix.out_features == 7  # type: ignore[union-attr]
    draw = np.random.default_rng(0)
    one = {f"x_{p}": draw.normal(size=(6, 1, 4, 4)).astype(np.float32) for p in ("train", "test")}
    fed = Federation.from_arrays([{**one, "y_train": [0, 1, 2] * 2, "y_test": [1, 0, 2] * 2}] * 2)
    for engine in ("loop", "stacked"):  # what it returns is a dict
        assert simulate("fedavg", fed, net, rounds=1, engine=engine, device="cpu").last.clients
