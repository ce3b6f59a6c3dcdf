"""Fine-tuning around any method: what it changes, and that it changes nothing else."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from idiolect import methods
from idiolect.core import tree
from idiolect.core.method import Method
from idiolect.errors import UserError
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.fine_tuning import fine_tuned
from idiolect.simulation.schedule import Stragglers
from tests.conftest import ENGINES, SmallNet, run, simulation
from tests.methods.plain import CLIENTS, NET, TINY, assert_same, batches, differ, federate, sgd
from tests.watched import Watched

TRAIN = {"lr": 0.2, "batch_size": 3}
TUNE = {"ft_lr": 0.1, "ft_batch_size": "full", "ft_weight_decay": 0.01}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("base", ["fedavg", "fedprox", "fedper", "spfl", "ditto"])
def test_starts_from_what_the_client_would_predict_with(engine: str, base: str) -> None:
    plain = Watched({"name": base, **TRAIN}, TINY, NET, 2, engine=engine)
    tuned = Watched({"name": f"{base}_ft", "ft_epochs": 3, **TRAIN, **TUNE}, TINY, NET, 2)
    for i, c in enumerate(CLIENTS):
        rows = batches(len(c), None, epochs=3)
        expected = sgd(plain.personal[1][i], c, rows, lr=0.1, decay=0.01)
        assert_same(tuned.personal[1][i], expected, what=f"client {i}")


@pytest.mark.parametrize("base", ["fedavg", "spfl", "fedas", "plga"])
def test_nothing_but_the_prediction_changes(base: str) -> None:
    """Server, private state and traffic are those of the method, bit for bit."""
    more = {"stragglers": Stragglers(count=1)} if base == "plga" else {"participation": 0.5}
    plain = Watched({"name": base, **TRAIN}, TINY, NET, 3, **more)
    tuned = Watched({"name": f"{base}_ft", **TRAIN}, TINY, NET, 3, **more)
    ours, theirs = tuned.sim.state()[0], plain.sim.state()[0]
    assert ours.keys() == theirs.keys()
    for leaf, value in theirs.items():
        if not leaf.startswith("metrics"):
            assert torch.equal(ours[leaf], value), leaf
    for a, b in zip(tuned.rounds, plain.rounds, strict=True):
        assert (a.bytes_up, a.bytes_down, a.samples) == (b.bytes_up, b.bytes_down, b.samples)
    assert all(differ(tuned.personal[-1][i], plain.personal[-1][i]) for i in range(4))


def test_no_steps_is_the_method_itself() -> None:
    tuned = Watched({"name": "fedavg_ft", "ft_epochs": 0, **TRAIN}, TINY, NET, 2)
    plain = Watched({"name": "fedavg", **TRAIN}, TINY, NET, 2)
    for i in range(4):
        assert_same(tuned.personal[1][i], plain.personal[1][i], tol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_are_mini_batches_capped_at_one_epoch(engine: str) -> None:
    """Client sizes 6, 9, 5, 8 in batches of 2: 3, 5, 3, 4 mini-batches an epoch."""

    def tuned(**how: int) -> list[dict]:
        method = {"name": "fedavg_ft", "ft_batch_size": 2, **how, **TRAIN}
        return Watched(method, TINY, NET, 1, engine=engine).personal[0]

    four, hundred, epoch = tuned(ft_steps=4), tuned(ft_steps=100), tuned(ft_epochs=1)
    for i in range(4):
        assert_same(hundred[i], epoch[i], tol=0)
    assert_same(four[0], epoch[0], tol=0)
    assert_same(four[2], epoch[2], tol=0)
    assert differ(four[1], epoch[1])
    assert_same(four[3], epoch[3], tol=0)


def test_each_client_sees_its_own_data_whoever_is_tested_with_it() -> None:
    ran = Watched({"name": "fedavg_ft", **TRAIN}, TINY, NET, 1)
    for i in range(4):
        alone = ran.sim.personal_model(i)
        assert_same(alone, ran.personal[0][i], tol=1e-12)
    some = ran.sim._personal([3, 1])
    assert_same(tree.client(some, 0), ran.personal[0][3], tol=1e-12)


def test_unseen_clients_are_fine_tuned_too() -> None:
    federation = federate(CLIENTS, unseen=[3])
    sim = run(methods.build({"name": "fedavg_ft", **TRAIN, **TUNE}), federation, NET, 2)
    expected = sgd(sim.server["model"], CLIENTS[3], lr=0.1, decay=0.01)
    assert_same(sim.personal_model(3), expected)


def test_a_method_without_it_pays_nothing(monkeypatch) -> None:
    """`adapt` that is not overridden is not even asked for."""
    sim = simulation(methods.build("fedavg"), TINY, NET)
    sim.step()
    monkeypatch.setattr(Method, "adapt", None)
    sim._personal([0, 1, 2, 3])


def test_statistics_follow_the_fine_tuning(ragged) -> None:
    net = SmallNet(norm=True)
    sims = [run(methods.build(n), ragged, net, 1) for n in ("fedavg", "fedavg_ft")]
    before, after = (s.personal_model(0)["body.1.running_mean"] for s in sims)
    assert (before - after).abs().max() > 1e-6
    assert_same(sims[0].server["model"], sims[1].server["model"], tol=0)


# --- names ---


def test_every_name_takes_the_suffix() -> None:
    assert {"fedavg_ft", "fedprox_ft"} <= set(methods.REGISTRY)
    for name, kind in list(methods.REGISTRY.items()):
        if name.endswith("_ft"):
            continue
        assert f"{name}_ft" in methods.REGISTRY
        tuned = methods.build(f"{name}_ft")
        assert tuned.name == f"{name}_ft"
        assert isinstance(tuned, kind)
        known = {f.name: f.default for f in fields(kind)}
        assert known.items() <= {f.name: f.default for f in fields(tuned)}.items()


@pytest.mark.parametrize("base", [n for n in sorted(methods.REGISTRY) if not n.endswith("_ft")])
def test_around_every_method_engines_agree(base: str) -> None:
    models = []
    for engine in ENGINES:
        ran = Watched({"name": f"{base}_ft", "ft_epochs": 1, **TUNE}, TINY, NET, 1, engine=engine)
        models.append(ran.personal[0])
    for i in range(4):
        assert_same(models[0][i], models[1][i], tol=1e-9, what=f"client {i}")


def test_hyperparameters_of_both() -> None:
    method = methods.build({"name": "spfl_ft", "gamma": 3, "ft_lr": 1, "ft_batch_size": "full"})
    assert (method.gamma, method.ft_lr, method.ft_batch_size) == (3, 1.0, "full")
    assert methods.REGISTRY["fedavg_ft"] is fine_tuned(FedAvg)
    assert methods.REGISTRY["spfl_ft"] is type(method)


@pytest.mark.parametrize("name", ["nothing_ft", "fedavg_ft_ft", "_ft", "spfl_f"])
def test_unknown_names_are_told_so(name: str) -> None:
    assert name not in methods.REGISTRY
    with pytest.raises(UserError, match="unknown method"):
        methods.build(name)


@pytest.mark.parametrize(
    "bad", [{"ft_lr": 0.0}, {"ft_steps": -1}, {"ft_batch_size": 0}, {"mu": -1.0}]
)
def test_bad_values_of_either_are_refused(bad: dict) -> None:
    with pytest.raises(UserError, match="must"):
        methods.build({"name": "fedprox_ft", **bad})
