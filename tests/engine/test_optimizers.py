"""Optimizers of local training: those of torch.optim, stacked = loop, kept or forgotten."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from idiolect import methods
from idiolect.conformance.problem import Normed
from idiolect.conformance.problem import network as model
from idiolect.core import tree
from idiolect.core.method import cross_entropy
from idiolect.engine import cuda_graphs as graphs
from idiolect.errors import UserError
from idiolect.simulation.simulation import Simulation
from tests.conftest import ENGINES, ragged_federation, simulation
from tests.test_every_method import Smooth, close, identical

SIZES = (24, 7, 33, 17)
FEDERATION = ragged_federation(SIZES)
HOW: dict[str, dict[str, Any]] = {
    "sgd": {},
    "decay": {"weight_decay": 0.1},
    "momentum": {"momentum": 0.9},
    "adam": {"optimizer": "adam", "lr": 0.01},
    "adam, decay": {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
    "clip": {"clip": 0.3, "momentum": 0.5, "weight_decay": 0.01},
    "adam, clip": {"optimizer": "adam", "lr": 0.01, "clip": 0.3},
}
HALF = [1, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125)]  # of a cosine, in four rounds
KINDS = ["fedavg", "ditto", "fedrep", "apfl", "pfedme", "fedas", "spfl"]


def torch_optimizer(weights: list[Tensor], how: dict[str, Any]) -> torch.optim.Optimizer:
    lr, decay = how.get("lr", 0.1), how.get("weight_decay", 0.0)
    if how.get("optimizer") == "adam":
        return torch.optim.Adam(weights, lr, weight_decay=decay)
    if how.get("optimizer") == "adamw":
        return torch.optim.AdamW(weights, lr, weight_decay=decay)
    return torch.optim.SGD(weights, lr, momentum=how.get("momentum", 0.0), weight_decay=decay)


@pytest.mark.parametrize("engine", [*ENGINES, "captured"])
@pytest.mark.parametrize("name", HOW)
def test_steps_are_those_of_torch(name: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs in stored order, client by client with PyTorch's own optimizers."""
    monkeypatch.setattr(graphs, "MIN_STEPS_TO_CAPTURE", 1)
    how = {"lr": 0.1, **HOW[name]}
    sim = begin("local", how, engine)
    given = {"epochs": 2, "batch_size": 8, "order": "fixed", **how}
    for group in sim.engine.groups(range(len(SIZES))):
        local = sim.engine.local(group, 0)
        start = {n: v.expand(len(group), *v.shape) for n, v in sim.start_tree.items()}
        done = local.sgd(cross_entropy, start, **given).params
        for k, i in enumerate(group):
            for leaf, value in alone(i, how).items():
                close(value, done[leaf][k], f"client {i}: {leaf}")


def alone(client: int, how: dict[str, Any]) -> dict[str, Tensor]:
    net = Smooth().double()
    net.load_state_dict({n: v.double() for n, v in model(Smooth).state_dict().items()})
    optimizer = torch_optimizer(list(net.parameters()), how)
    rows = FEDERATION.train[client]
    for _ in range(2):
        for batch in rows.split(8):
            out = net(FEDERATION.x[batch].double())
            optimizer.zero_grad()
            nn.functional.cross_entropy(out, FEDERATION.y[batch]).backward()
            if "clip" in how:
                torch.nn.utils.clip_grad_norm_(net.parameters(), how["clip"])
            optimizer.step()
    return net.state_dict()


def begin(
    name: str,
    how: dict[str, Any],
    engine: str = "stacked",
    net: type[nn.Module] = Smooth,
    **options: Any,
) -> Simulation:
    known = methods.REGISTRY[name].__dataclass_fields__
    small = {"lr": 0.1, "batch_size": 8, "epochs": 1, "head_epochs": 1}
    section = {"name": name} | {k: v for k, v in (small | how).items() if k in known}
    loop = "loop" if engine == "loop" else "stacked"
    sim = simulation(methods.build(section), FEDERATION, model(net), 3, engine=loop, **options)
    if engine == "captured":
        sim.engine.captured_steps = graphs.CapturedSteps(sim.engine.samples)  # type: ignore[attr-defined]
    return sim


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("how", ["adam", "clip"])
@pytest.mark.parametrize("keep", [False, True])
def test_engines_agree(name: str, how: str, keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what optimizers remember; and kept or not is another run."""
    monkeypatch.setattr(graphs, "MIN_STEPS_TO_CAPTURE", 1)
    ends = {}
    for engine in [*ENGINES, "captured"]:
        sim = begin(name, HOW[how] | {"keep_optimizer": keep}, engine, participation=0.75)
        sim.step()
        sim.step()
        ends[engine] = sim.state()[0]
    for engine in ("stacked", "captured"):
        assert ends[engine].keys() == ends["loop"].keys()
        for leaf, value in ends["loop"].items():
            close(value, ends[engine][leaf], f"{engine}, {name}: {leaf}")
    assert any(leaf.startswith("optimizer/") for leaf in ends["loop"]) == keep


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("how", ["momentum", "adam"])
def test_a_kept_optimizer_goes_on(how: str, norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of one epoch that keep are one round of two epochs; two that forget are not. With
    BatchNorm too, where batches of unusual size take steps of their own."""
    monkeypatch.setattr(graphs, "MIN_STEPS_TO_CAPTURE", 1)
    found = {}
    for engine in [*ENGINES, "captured"]:
        for keep, rounds, epochs in ((True, 2, 1), (False, 2, 1), (False, 1, 2)):
            settings = HOW[how] | {"keep_optimizer": keep, "epochs": epochs, "order": "fixed"}
            sim = begin("local", settings, engine, net=Normed if norm else Smooth)
            for _ in range(rounds):
                sim.step()
            found[keep, rounds] = tree.clone(sim._personal([0, 1, 2, 3]))
        for leaf, value in found[True, 2].items():
            close(value, found[False, 1][leaf], f"{engine}: {leaf}", 1e-8 if norm else 1e-9)
        gaps = [float((v - found[False, 2][n]).abs().max()) for n, v in found[True, 2].items()]
        assert max(gaps) > 1e-4


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedper"])
def test_resume_ends_with_the_same_bits(name: str) -> None:
    how = {"optimizer": "adam", "lr": 0.01, "keep_optimizer": True}
    whole = begin(name, how, participation=0.5)
    whole.step()
    tensors, meta = whole.state()
    again = begin(name, how, participation=0.5)
    again.restore({n: v.clone() for n, v in tensors.items()}, json.loads(json.dumps(meta)))
    for sim in (whole, again):
        sim.step()
        sim.step()
    identical(whole.state()[0], again.state()[0])
    other = begin(name, how | {"keep_optimizer": False}, participation=0.5)
    for _ in range(3):
        other.step()
    leaves = tree.leaves(dict(other.server))
    assert any(not torch.equal(v, whole.state()[0][f"server/{n}"]) for n, v in leaves.items())


def test_what_optimizers_remember_is_not_sent() -> None:
    plain, kept = begin("fedavg", {}), begin("fedavg", HOW["adam"] | {"keep_optimizer": True})
    assert plain.step().bytes_up == kept.step().bytes_up
    assert "optimizer/train/0/taken" in kept.state()[0]


# --- the learning rate over rounds ---


@pytest.mark.parametrize(
    ("how", "factors"),
    [
        ({}, [1, 1, 1, 1]),
        ({"lr_decay": 0.5}, [1, 0.5, 0.25, 0.125]),
        ({"lr_decay": 0.5, "lr_every": 2}, [1, 1, 0.5, 0.5]),
        ({"lr_schedule": "cosine", "lr_rounds": 4}, HALF),
        ({"lr_schedule": "cosine"}, HALF),
        ({"lr_warmup": 3}, [1 / 3, 2 / 3, 1, 1]),
        ({"lr_warmup": 2, "lr_decay": 0.5}, [0.5, 0.5, 0.25, 0.125]),
    ],
)  # fmt: skip
def test_schedules(how: dict[str, Any], factors: list[float]) -> None:
    method: Any = methods.build({"name": "fedavg", **how}).over(4)
    assert [method.lr_factor(t) for t in range(4)] == pytest.approx(factors)


@pytest.mark.parametrize("name", ["ditto", "fedpac", "scaffold", "pfedme", "apfl"])
def test_a_schedule_is_for_every_learning_rate_of_a_method(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same factor in every call, whatever its learning rate."""
    sim, seen = begin(name, {"lr_schedule": "cosine", "personal_lr": 0.2}, "loop"), []
    local = type(sim.engine.local([0], 0))
    run = local._sgd

    def noted(self: Any, goal: Any, params: Any, how: Any, *rest: Any) -> Any:
        seen.append(float(how.lr) / sim.method.lr_factor(self.round))  # type: ignore[attr-defined]
        return run(self, goal, params, how, *rest)

    monkeypatch.setattr(local, "_sgd", noted)
    rounds = []
    for _ in range(3):
        seen.clear()
        sim.step()
        rounds.append(sorted({round(v, 12) for v in seen}))
    assert rounds[0] == rounds[1] == rounds[2]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("scaffold", "scaffold prescribes its own update and allows sgd only"),
        ("per_fedavg", "per_fedavg prescribes its own update and allows sgd only"),
        ("pflego", "pflego prescribes its own update and has no method.optimizer"),
        ("fedrecon", "fedrecon prescribes its own update and has no method.optimizer"),
    ],
)
def test_methods_with_an_update_of_their_own_refuse(name: str, told: str) -> None:
    with pytest.raises(UserError, match=told.replace(".", r"\.")):
        methods.build({"name": name, "optimizer": "adam"})
    if "sgd" in told:
        assert methods.build({"name": name, "optimizer": "sgd"}) == methods.build(name)
