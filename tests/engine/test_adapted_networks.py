"""Adapters under every method: loop = stacked, only what trains travels, and the frozen base is one
for all clients, in memory and in every product."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from idiolect import methods, models, simulate
from idiolect.core.method import cross_entropy
from idiolect.data import Federation
from idiolect.errors import UserError
from idiolect.simulation.side_by_side import Sweep
from tests.conftest import ragged_federation, simulation
from tests.engine.engines import assert_agree
from tests.engine.test_networks import (
    SHORT,
    TEXTS,
    Images,
    OnRows,
    SelfAttention,
    encoder,
    sentences,
)
from tests.methods.plain import seeded
from tests.test_every_method import METHODS, Smooth, close, small

FEDERATION = ragged_federation((9, 12, 5, 14))
OWN_HEAD = {"fedpac", "fedproto", "fedrod", "pflego", "fedrecon"}  # need the head's own weight


@cache
def adapted(spec: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Smooth()
        net.body.insert(2, nn.LayerNorm(8))  # type: ignore[operator]
        return models.adapted(net, spec)


def ends(name: str, spec: str) -> list[dict[str, Tensor]]:
    both = []
    for engine in ("loop", "stacked"):
        sim = simulation(small(name), FEDERATION, adapted(spec), 2, engine=engine)
        sim.step()
        sim.step()
        assert sim.engine.name == engine
        both.append(sim.state()[0])
    return both


@pytest.mark.parametrize("name", METHODS)
def test_every_method_works_on_what_trains(name: str) -> None:
    loop, stacked = ends(name, "lora:2,head")
    assert loop.keys() == stacked.keys()
    for leaf, value in loop.items():
        close(value, stacked[leaf], f"{name}: {leaf}")
        assert "body.1.weight" not in leaf  # the base is nobody's state


@pytest.mark.parametrize("spec", ["lora:2", "bias", "norm"])
@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedas", "cd2_pfed", "spfl", "apfl"])
def test_parts(name: str, spec: str) -> None:
    loop, stacked = ends(name, spec)
    for leaf, value in loop.items():
        close(value, stacked[leaf], f"{name}: {leaf}")


def test_similarity_of_layers_counts_both_parts_of_a_difference() -> None:
    spfl = replace(small("spfl"), similarity="layers", layer_weights="0.5,0.2,0.3")  # type: ignore[call-arg]
    simulation(spfl, FEDERATION, adapted("lora:2,norm"), 1).step()


@pytest.mark.parametrize("name", sorted(OWN_HEAD))
def test_methods_that_need_a_head_of_their_own_say_so(name: str) -> None:
    with pytest.raises(UserError, match=r"'head\.weight' is frozen.*model\.adapt=.*,head"):
        simulation(small(name), FEDERATION, adapted("lora:2"), 1).step()


@pytest.mark.parametrize("spec", ["lora:2", "lora:2,head", "bias", "norm,head"])
def test_only_what_trains_travels(spec: str) -> None:
    result = simulate("fedavg", FEDERATION, adapted(spec), rounds=2, device="cpu")
    trained = sum(p.numel() for p in adapted(spec).parameters() if p.requires_grad)
    assert result.rounds[1].bytes_up == 4 * 4 * trained == result.rounds[1].bytes_down
    for name, start in adapted(spec).named_parameters():
        if not start.requires_grad:
            assert all(torch.equal(c[name], start) for c in result.last.clients), name


def test_a_part_may_stay_with_the_client_by_pattern() -> None:
    """One half of every difference is averaged, the other is the client's own."""
    fedper = {"name": "fedper", "personal_layers": "*lora_up"}
    result = simulate(fedper, FEDERATION, adapted("lora:2"), rounds=2, device="cpu")
    one, other = result.last.clients[:2]
    assert torch.equal(one["body.1.lora_down"], other["body.1.lora_down"])
    assert not torch.equal(one["body.1.lora_up"], other["body.1.lora_up"])


def test_exports_load_into_the_plain_module_merged() -> None:
    net = adapted("lora:2,head")
    result = simulate("fedper", FEDERATION, net, rounds=3, device="cpu", dtype="float64")
    plain = Smooth().double()
    plain.body.insert(2, nn.LayerNorm(8).double())  # type: ignore[operator]
    for client, state in enumerate(result.last.clients):
        plain.load_state_dict(models.merged(state))
        rows = FEDERATION.test[client]
        right = (plain(FEDERATION.x[rows].double()).argmax(1) == FEDERATION.y[rows]).double()
        assert float(right.mean()) == pytest.approx(result.accuracy()[-1, client], abs=1e-12)
    again = simulate("fedper", FEDERATION, net, rounds=1, init=plain.state_dict(), device="cpu")
    base = again.last.clients[0]["body.1.weight"]
    assert torch.equal(base, plain.state_dict()["body.1.weight"].float())  # a base from elsewhere


NETWORKS: dict[str, Any] = {
    "conv": lambda: Images(
        8, nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.Conv2d(8, 8, 3, padding=1)
    ),
    "conv1d": lambda: Images(6, nn.Conv1d(12, 6, 3, padding=1), nn.GELU(), view=(12, 12)),
    "gru": lambda: OnRows(nn.GRU(12, 6, batch_first=True), 6),
    "attention": lambda: OnRows(SelfAttention(True)),
    "encoder": lambda: OnRows(
        nn.TransformerEncoder(encoder(norm_first=True), 2, enable_nested_tensor=False)
    ),
    "text": TEXTS["text transformer"],
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_with_adapters(name: str) -> None:
    federation = sentences() if name == "text" else FEDERATION
    net = models.adapted(seeded(NETWORKS[name]), "bias,head" if name == "gru" else "lora:2,head")
    method = methods.build(SHORT)
    both = [simulation(method, federation, net, 2, engine=e) for e in ("loop", "stacked")]
    for sim in both:
        sim.step()
        sim.step()
    assert [sim.engine.name for sim in both] == ["loop", "stacked"]
    assert_agree(*both)
    start = net.state_dict()
    for leaf in both[0].engine.net.weights:
        assert not torch.equal(both[0].personal_model(0)[leaf], start[leaf].double()), leaf


@pytest.mark.parametrize("form", ["first_order", "exact"])
def test_second_order_methods(form: str) -> None:
    method = methods.build({"name": "per_fedavg", "form": form, "lr": 0.1, "batch_size": 4})
    both = [
        simulation(method, FEDERATION, adapted("lora:2,head"), 1, engine=e)
        for e in ("loop", "stacked")
    ]
    for sim in both:
        sim.step()
    assert_agree(*both)


class Largest(TorchDispatchMode):
    """The numbers in the largest tensor that any operation inside makes; views are none."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, tuple | list) else [out]:
            if isinstance(one, Tensor) and one.untyped_storage().nbytes() >= one.nbytes:
                self.most = max(self.most, one.numel())
        return out


BASES: dict[str, Any] = {
    "linear": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(144, 144), nn.Tanh(), nn.Linear(144, 5)
    ),
    "conv": lambda: Images(64, nn.Conv2d(1, 64, 12), nn.Tanh(), nn.Conv2d(64, 64, 1)),
    "encoder": lambda: OnRows(
        nn.Sequential(
            nn.Linear(12, 96), nn.TransformerEncoderLayer(96, 2, 96, 0.0, batch_first=True)
        ),
        96,
    ),
}


@pytest.mark.parametrize("name", ["linear", "conv", "encoder"])
def test_no_operation_makes_a_stack_of_the_base(name: str) -> None:
    """Samples are few here, so nothing is as large as two copies of the largest weight unless
    somebody copies the base."""
    federation = ragged_federation((2,) * 12)
    net = models.adapted(seeded(BASES[name]).float(), "lora:1,head")
    weight = max(p.numel() for p in net.parameters() if not p.requires_grad)
    assert largest(net, federation) < 2 * weight
    # Without adapters the stack is there: the check can fail.
    assert largest(seeded(BASES[name]).float(), federation) >= 12 * weight


def largest(net: nn.Module, federation: Federation) -> int:
    """The numbers in the largest tensor of a step of all clients."""
    sim = simulation(methods.build("local"), federation, net, 1, dtype="float32")
    ids = list(range(federation.n_clients))
    start = {n: v.expand(len(ids), *v.shape) for n, v in sim.start_tree.items()}
    with Largest() as seen:
        sim.engine.local(ids, 0).sgd(cross_entropy, start, lr=0.1, batch_size=1, steps=1)
    return seen.most


def test_runs_with_different_bases_are_not_computed_together() -> None:
    """A stack computes in one module: seeds that draw another base stay apart."""

    def kind(seed: int, base: int) -> Any:
        net = models.build({"name": "mlp", "adapt": "lora:2"}, (1, 12, 12), 5, seed=base)
        return Sweep.kind(simulation(methods.build("local"), FEDERATION, net, 1, seed=seed))

    assert kind(0, base=0) == kind(1, base=0)
    assert kind(0, base=0) != kind(0, base=1)


def test_bfloat16() -> None:
    """Both nets show one base, which is shortened once; what trains stays single precision."""
    method = methods.build(SHORT)
    net = models.adapted(seeded(NETWORKS["encoder"]), "lora:2,head")
    ends = []
    for dtype in ("bf16", "float32"):
        sim = simulation(method, FEDERATION, net, 1, dtype=dtype)
        sim.step()
        ends.append(sim.personal_model(0))
    for leaf, value in ends[0].items():
        assert value.dtype == (torch.float32 if leaf in sim.engine.net.names else torch.float64)
        torch.testing.assert_close(value, ends[1][leaf], rtol=0.05, atol=0.02)


def test_both_nets_of_an_engine_share_the_base() -> None:
    sim = simulation(methods.build("local"), FEDERATION, adapted("lora:2"), 1)
    one, other = (dict(net.module.named_parameters()) for net in sim.engine.nets)
    for name, p in one.items():
        assert (p is other[name]) == (not p.requires_grad), name
