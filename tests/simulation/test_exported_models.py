"""What a simulation hands out loads into the plain module and scores what was reported: tied and
reused layers, frozen layers, buffers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from idiolect import simulate
from idiolect.core.net import logits_of
from idiolect.errors import UserError
from idiolect.methods import REGISTRY
from tests.conftest import ragged_federation
from tests.engine.test_networks import PLACES, SEQUENCES, TEXTS, sentences

FEDERATION = ragged_federation((24, 17, 30))


class Tied(nn.Module):
    """Two layers share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(144, 144), nn.Linear(144, 144)
        self.second.weight = self.first.weight
        self.head = nn.Linear(144, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x.flatten(1)))
        out: Tensor = self.head(torch.tanh(self.second(h)))
        return out


class Reused(nn.Module):
    """One layer under two names, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Linear(144, 12)
        self.again = self.once = nn.Linear(12, 12)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.narrow(x.flatten(1)))
        out: Tensor = self.head(self.again(torch.tanh(self.once(h))))
        return out


class Frozen(nn.Module):
    """A first layer that must not move, and a whole-number buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.body = nn.Linear(144, 16), nn.Linear(16, 12)
        self.base.requires_grad_(False)
        self.head = nn.Linear(12, 5)
        self.register_buffer("order", torch.arange(12))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(torch.tanh(self.base(x.flatten(1)))))
        out: Tensor = self.head(h[:, self.order])
        return out


class Normed(nn.Module):
    """BatchNorm statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(144, 12), nn.BatchNorm1d(12), nn.Tanh())
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


class HeadFirst(nn.Module):
    """The last layer is registered first."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.inner = nn.Linear(12, 5), nn.Linear(144, 12)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.tanh(self.inner(x.flatten(1))))
        return out


class Told(HeadFirst):
    """Logits are one part of what it returns; part of its features is dropped in training."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        h = torch.tanh(self.inner(x.flatten(1)))
        return {"logits": self.out(nn.functional.dropout(h, 0.5, self.training)), "features": h}


ZOO = (Tied, Reused, Frozen, Normed)
KINDS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": PLACES["batch norm"],
    "group norm": PLACES["group norm"],
    "gru": SEQUENCES["gru"],
    "lstm": SEQUENCES["lstm"],
    "transformer": SEQUENCES["encoder"],
    "embedding": TEXTS["text gru"],
    "text": TEXTS["text transformer"],
    "tied": Tied,
    "frozen": Frozen,
    "head first": HeadFirst,
    "dict, dropout": Told,
}


def made(kind: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind()


def options(method: str) -> dict[str, Any]:
    known = REGISTRY[method].__dataclass_fields__
    wanted = {"lr": 0.1, "epochs": 2, "steps": 0, "batch_size": 8}
    return {"name": method, **{k: v for k, v in wanted.items() if k in known}}


@pytest.mark.parametrize("kind", ZOO)
@pytest.mark.parametrize("method", list(REGISTRY))
def test_loaded_models_score_what_was_reported(method: str, kind: type[nn.Module]) -> None:
    module = made(kind)
    result = simulate(options(method), FEDERATION, module, rounds=2, device="cpu", dtype="float64")
    plain = made(kind).double().eval()
    reported = result.accuracy()[-1]
    for client, state in enumerate(result.last.clients):
        plain.load_state_dict(state)
        rows = FEDERATION.test[client]
        with torch.no_grad():
            right = (plain(FEDERATION.x[rows].double()).argmax(1) == FEDERATION.y[rows]).double()
        assert float(right.mean()) == pytest.approx(float(reported[client]), abs=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_networks_of_all_kinds(name: str) -> None:
    """The engines agree (dropout draws anew in each), and exports load into the plain module."""
    federation = sentences() if KINDS[name] in TEXTS.values() else FEDERATION
    how: dict[str, Any] = {"rounds": 2, "device": "cpu", "dtype": "float64"}
    loop, stacked = (
        simulate(options("fedper"), federation, made(KINDS[name]), engine=engine, **how)
        for engine in ("loop", "stacked")
    )
    plain = made(KINDS[name]).double().eval()
    for client, (one, other) in enumerate(
        zip(loop.last.clients, stacked.last.clients, strict=True)
    ):
        for leaf, value in one.items() if "dropout" not in name else ():
            torch.testing.assert_close(value, other[leaf], rtol=0, atol=1e-9, msg=leaf)
        plain.load_state_dict(other)
        rows, x = federation.test[client], federation.x[federation.test[client]]
        with torch.no_grad():
            out = logits_of(plain(x if x.dtype == torch.int64 else x.double()))
        right = (out.argmax(1) == federation.y[rows]).double()
        assert float(right.mean()) == pytest.approx(stacked.accuracy()[-1, client], abs=1e-12)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_frozen_layers_neither_move_nor_travel(engine: Any) -> None:
    module = made(Frozen)
    result = simulate("fedavg", FEDERATION, module, rounds=2, engine=engine, device="cpu")
    for state in result.last.clients:
        assert torch.equal(state["base.weight"], module.base.weight)  # type: ignore[union-attr,arg-type]
        assert not torch.equal(state["body.weight"], module.body.weight)  # type: ignore[union-attr,arg-type]
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert result.rounds[1].bytes_up == 3 * 4 * trained


@pytest.mark.parametrize("kind", (Tied, Reused))
def test_tied_weights_are_one_leaf(kind: type[nn.Module]) -> None:
    module = made(kind)
    both = {"engine": "loop"}, {"engine": "stacked"}
    how: dict[str, Any] = {"rounds": 2, "device": "cpu", "dtype": "float64"}
    one, other = (simulate("fedavg", FEDERATION, module, **how, **e) for e in both)
    for a, b in zip(one.last.clients, other.last.clients, strict=True):
        for name, value in a.items():
            torch.testing.assert_close(value, b[name], rtol=0, atol=1e-9)
    first, second = (
        ("first.weight", "second.weight") if kind is Tied else ("again.bias", "once.bias")
    )
    state = one.last.clients[0]
    assert torch.equal(state[first], state[second])
    size = sum(p.numel() for p in module.parameters())
    assert one.rounds[1].bytes_up == 3 * 8 * size


def test_results_share_no_memory_with_the_module() -> None:
    module = made(Frozen)
    before = {n: v.clone() for n, v in module.state_dict().items()}
    result = simulate("fedper", FEDERATION, module, rounds=1, device="cpu")
    for state in result.last.clients:
        for value in state.values():
            value.zero_()
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_tied_head_is_told_to_methods_that_need_their_own() -> None:
    class TiedHead(Tied):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(144, 144)
            self.head.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, :5]

    with pytest.raises(UserError, match=r"needs a head of its own, but 'head.weight' is tied"):
        simulate("pflego", FEDERATION, made(TiedHead), rounds=1, device="cpu")


def test_a_model_without_anything_to_train() -> None:
    still = made(Normed).requires_grad_(False)
    with pytest.raises(UserError, match="no parameter to train"):
        simulate("fedavg", FEDERATION, still, rounds=1, device="cpu")


def test_an_export_is_a_starting_point_again() -> None:
    for kind in (Tied, Reused, Frozen):
        module = made(kind)
        first = simulate("fedavg", FEDERATION, module, rounds=1, device="cpu")
        again = simulate(
            "fedavg", FEDERATION, made(kind), rounds=1, init=first.last.clients[0], device="cpu"
        )
        assert again.rounds[0].clients["accuracy_before"].tolist() == pytest.approx(
            first.rounds[1].clients["accuracy_before"].tolist()
        )
