"""Net: a plain module as a function of its tree; heads, parts and stages by name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from idiolect.core.net import Net, initial_tree
from idiolect.errors import UserError
from tests.conftest import SmallNet


class Unnamed(nn.Module):
    """No `head`: the last linear layer serves."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(3, 4)
        self.out = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 2)})
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.out["b"](self.norm(self.out["a"](self.encode(x))))
        return h


class Forgetful(nn.Module):
    """Has a head and never calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.body(x)
        return h


def start(module: nn.Module, net: Net) -> dict[str, Tensor]:
    return initial_tree(module, net, torch.float32)


# --- heads ---


@pytest.mark.parametrize(
    ("module", "head"),
    [
        (SmallNet(), ("head.weight", "head.bias")),
        (Unnamed(), ("out.b.weight", "out.b.bias")),
        (nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), ("1.weight", "1.bias")),
        (nn.Linear(3, 2), ("weight", "bias")),
        (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2, bias=False)), ("1.weight",)),
    ],
    ids=["named", "last linear", "sequential", "bare", "no bias"],
)
def test_head(module: nn.Module, head: tuple[str, ...]) -> None:
    net = Net(module)
    assert net.head == head
    assert set(net.head) | set(net.body) == set(net.names)
    assert not set(net.head) & set(net.body)


def test_a_deep_head_is_one_head() -> None:
    module = SmallNet()
    module.head = nn.Sequential(nn.Linear(24, 6), nn.ReLU(), nn.Linear(6, 5))  # type: ignore[assignment]
    assert Net(module).head == ("head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias")


def test_no_head_at_all() -> None:
    net = Net(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()))
    assert net.part("all") == net.names and net.stages(1) == [net.weights]
    for ask in (lambda: net.head, lambda: net.part("body"), lambda: net.linear_head()):
        with pytest.raises(UserError, match="no linear layer to serve as head"):
            ask()


@pytest.mark.parametrize("module", [SmallNet(norm=True), Unnamed(), nn.Linear(3, 2)])
def test_logits_are_the_head_of_the_features(module: nn.Module) -> None:
    net = Net(module)
    params = start(module, net)
    x = torch.randn(6, 1, 12, 12) if isinstance(module, SmallNet) else torch.randn(6, 3)
    body = {n: params[n] for n in net.body}
    head = {n: params[n] for n in net.head}
    logits = net.classify(head, net.features(body, x))
    assert torch.equal(logits, net(params, x))
    with torch.no_grad():
        assert torch.equal(logits, module.eval()(x))


def test_a_head_that_is_never_called() -> None:
    module = Forgetful()
    net = Net(module)
    with pytest.raises(UserError, match="never calls its head 'head'"):
        net.features(start(module, net), torch.randn(2, 3))


def test_features_leave_no_hook_behind() -> None:
    module = SmallNet()
    net = Net(module)
    params = start(module, net)
    x = torch.randn(2, 1, 12, 12)
    net.features(params, x)
    assert net(params, x).shape == (2, 5)


# --- names ---


def test_weights_and_statistics() -> None:
    net = Net(SmallNet(norm=True))
    assert net.stats == ("body.1.running_mean", "body.1.running_var")
    assert "body.1.weight" in net.weights
    assert net.names == net.weights + net.stats


def test_parts() -> None:
    net = Net(SmallNet(norm=True))
    assert net.part("head") == net.head
    assert net.part("body") == net.body
    assert net.part("none") == ()
    assert net.part("all") == net.names
    norm = ("body.1.weight", "body.1.bias", "body.1.running_mean", "body.1.running_var")
    assert net.part("norm") == norm
    assert net.part("body.0.*") == ("body.0.weight", "body.0.bias")
    assert net.part("head.bias, body.0.weight") == ("body.0.weight", "head.bias")
    assert Net(Unnamed()).part("norm") == ("norm.weight", "norm.bias")


def test_a_pattern_that_matches_nothing() -> None:
    with pytest.raises(UserError, match=r"no parameter matches 'tail\.\*'; names are body"):
        Net(SmallNet()).part("tail.*")


def test_stages() -> None:
    net = Net(SmallNet(norm=True))
    body, head = net.stages(2)
    assert body + head == net.weights  # statistics are in no stage
    assert head == net.head
    assert net.stages(1) == [net.weights]
    assert net.stages("tensor") == [(n,) for n in net.weights]
    with pytest.raises(UserError, match="stages must be 1, 2 or 'tensor', not 3"):
        net.stages(3)


def test_a_model_that_is_all_head_has_one_stage() -> None:
    assert Net(nn.Linear(3, 2)).stages(2) == [("weight", "bias")]


# --- the module stays the user's ---


def test_the_users_module_is_not_touched() -> None:
    module = SmallNet(norm=True).train()
    state = {n: v.clone() for n, v in module.state_dict().items()}
    net = Net(module)
    params = start(module, net)
    for v in params.values():
        v.add_(1)
    net(params, torch.randn(2, 1, 12, 12))
    assert module.training
    assert all(p.requires_grad for p in module.parameters())
    assert all(torch.equal(v, state[n]) for n, v in module.state_dict().items())


def test_couples_only_with_batchnorm_in_training() -> None:
    assert Net(SmallNet(norm=True), training=True).couples
    assert not Net(SmallNet(norm=True)).couples
    assert not Net(SmallNet(drop=0.5), training=True).couples
    assert not Net(Unnamed(), training=True).couples


def test_cumulative_batchnorm_is_refused() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, momentum=None), nn.Linear(3, 2))
    with pytest.raises(UserError, match="momentum=None"):
        Net(module)


def test_batchnorm_without_statistics() -> None:
    module = nn.Sequential(
        nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 2)
    )
    assert Net(module).stats == ()
