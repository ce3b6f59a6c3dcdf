"""Simulations side by side give the numbers of separate runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from torch import nn

from idiolect import data as federation
from idiolect import methods, models
from idiolect.core import devices, tree
from idiolect.core.local import Local
from idiolect.core.method import Method
from idiolect.core.per_client import Apart, PerClient
from idiolect.engine import cuda_graphs as graphs
from idiolect.engine.stacked import StackedEngine
from idiolect.methods.fedprox import FedProx
from idiolect.simulation.outcome import Round
from idiolect.simulation.schedule import Stragglers
from idiolect.simulation.side_by_side import Sweep
from idiolect.simulation.simulation import Simulation
from tests.conftest import ragged_federation, simulation
from tests.test_every_method import METHODS, Plain, model, small

SPLIT = {"name": "dirichlet", "clients": 6, "alpha": 0.5}
RAGGED = ragged_federation()
ROUNDS = 3


def one(name: str, seed: int, **options: Any) -> Simulation:
    fed = federation.build({"name": "digits"}, SPLIT, seed)
    model = models.build({"name": "mlp"}, fed.shape, fed.classes, seed)
    section = {"name": name}
    known = methods.REGISTRY[name].__dataclass_fields__
    section |= {k: v for k, v in {"tau": 4, "steps": 3}.items() if k in known}
    settings = {"rounds": ROUNDS, "device": "cpu", "dtype": "float64", "participation": 0.7}
    return Simulation(methods.build(section), fed, model, seed=seed, **(settings | options))


def varied(method: Method, seed: int = 0, kind: type[nn.Module] = Plain) -> Simulation:
    late = Stragglers(periods=(1, 2)) if method.asynchronous else None
    options: dict[str, Any] = {"participation": 0.6, "stragglers": late, "seed": seed}
    return simulation(method, RAGGED, model(kind), ROUNDS, **options)


def equal(sweep: Sweep, alone: Sequence[Simulation]) -> None:
    """Every round, metric and tensor of the sweep is that of the simulations run one by one."""
    rounds = [sweep.start(), *(sweep.step() for _ in range(ROUNDS))]
    for k, sim in enumerate(alone):
        for t, apart in enumerate([sim.start(), *(sim.step() for _ in range(ROUNDS))]):
            same_round(rounds[t][k], apart)
        ours = sweep.simulations[k].state()[0]
        for leaf, value in sim.state()[0].items():
            torch.testing.assert_close(
                ours[leaf], value, rtol=1e-9, atol=1e-10, equal_nan=True, msg=leaf
            )


def same_round(ours: Round, theirs: Round) -> None:
    for what in ("round", "started", "arrived", "staleness", "samples", "bytes_up", "bytes_down"):
        assert getattr(ours, what) == getattr(theirs, what), what
    np.testing.assert_allclose(ours.train_loss, theirs.train_loss, rtol=1e-9)
    for column, values in theirs.clients.items():
        np.testing.assert_allclose(
            ours.clients[column], values, rtol=1e-9, atol=1e-9, err_msg=column
        )
    assert ours.logs.keys() == theirs.logs.keys()
    for name, value in theirs.logs.items():
        torch.testing.assert_close(ours.logs[name], value, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("name", ["fedavg", "fedas", "feddwa", "pflego", "spfl", "plga"])
def test_seeds_equal_separate_runs(name: str) -> None:
    sweep = Sweep([one(name, s) for s in (0, 1, 2)])
    assert len({Sweep.kind(each) for each in sweep.simulations}) == 1
    equal(sweep, [one(name, s) for s in (0, 1, 2)])
    assert not sweep.apart


# Hyperparameters whose points are computed one after the other: local work asks whether they are
# zero or one, or they decide the shape of what is sent.
APART = {
    "cd2_pfed": {"distill", "average"},
    "ditto": {"personal_lr"},
    "fedala": {"data_share", "threshold"},
    "fedfomo": {"val_share"},
    "fedavg_ft": {"ft_weight_decay"},
    "fedprox_ft": {"ft_weight_decay"},
    "l2c": {"alpha_lr", "alpha_decay", "val_share"},
}
SGD = {"weight_decay", "momentum", "clip"}  # of every method that has them


OFTEN = {"fedavg", "fedprox", "ditto", "fedas", "feddwa", "pflego"}  # the others: `make heavy`


def floats() -> list[Any]:
    """Every number of every method; what all that train by SGD inherit, for a few of them."""
    found = []
    for name in METHODS:
        hints = get_type_hints(methods.REGISTRY[name])
        for field in fields(methods.REGISTRY[name]):
            common = field.name in {f.name for f in fields(methods.REGISTRY["fedavg"])}
            marks = [pytest.mark.heavy] if common and name not in OFTEN else []
            if hints[field.name] is float:
                found.append(pytest.param(name, field.name, marks=marks))
    return found


def points(name: str, field: str) -> list[Method]:
    """Two values of one hyperparameter, with little work per round."""
    base = small(name)
    usual = getattr(base, field) or 0.1
    return [replace(base, **{field: v}) for v in (usual, 0.5 * usual)]


@pytest.mark.parametrize(("name", "field"), floats())
def test_values_equal_separate_runs(name: str, field: str) -> None:
    """Every hyperparameter of every method: in one stack, or found to need its own."""
    made = points(name, field)
    sweep = Sweep([varied(method, seed=k) for k, method in enumerate(made)])
    assert len({Sweep.kind(each) for each in sweep.simulations}) == 1
    equal(sweep, [varied(method, seed=k) for k, method in enumerate(made)])
    apart = field in APART.get(name, set()) | SGD
    assert sweep.apart == ({field} if apart else set())


OPTIONS = [
    ("feddwa", "lr", {"guidance": "full_gradient"}),
    ("fedrecon", "update_lr", {"update_steps": 2}),
    ("fedrecon", "beta", {"heads": "reset"}),
    ("pflego", "rho", {"head_step": "exact"}),
    ("per_fedavg", "delta", {"form": "hessian_free"}),
    ("per_fedavg", "alpha", {"form": "exact"}),
    ("scaffold", "lr", {"option": 1}),
    ("apfl", "lr", {"adaptive": True}),
    ("ditto", "lr", {"personal_lr": 0.05}),
    ("fedas", "align_lr", {"target": "sample"}),
    ("fedbabu_ft", "ft_lr", {}),
]


@pytest.mark.parametrize(("name", "field", "options"), OPTIONS)
def test_values_reach_every_branch(name: str, field: str, options: dict[str, Any]) -> None:
    made = [replace(method, **options) for method in points(name, field)]
    sweep = Sweep([varied(method) for method in made])
    equal(sweep, [varied(method) for method in made])
    assert not sweep.apart


@pytest.mark.parametrize(("name", "field"), [("fedprox", "lr"), ("ditto", "lam"), ("pfedme", "lr")])
def test_values_reach_captured_steps(
    name: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MIN_STEPS_TO_CAPTURE", 1)
    made = points(name, field)
    sweep = Sweep([varied(method) for method in made])
    sweep.engine.captured_steps = graphs.CapturedSteps(sweep.engine.samples)  # type: ignore[attr-defined]
    equal(sweep, [varied(method) for method in made])
    assert sweep.engine.captured_steps.captured  # type: ignore[attr-defined]


def test_a_grid_is_divided_only_where_it_must_be() -> None:
    made = [
        replace(small("fedprox"), mu=mu, momentum=m) for mu in (0.1, 1.0, 10.0) for m in (0.0, 0.5)
    ]
    sweep = Sweep([varied(method) for method in made])
    fits = spy_on(sweep, "run")
    equal(sweep, [varied(method) for method in made])
    assert sweep.apart == {"momentum"}
    assert len(fits) == 1 + 2 * ROUNDS  # the first try finds out
    assert {len(ids) for ids in fits[1:]} == {9}  # three values of three clients


def test_messages_of_different_shape_are_apart() -> None:
    made = [replace(small("cd2_pfed"), personal_share=s, growth_rounds=0) for s in (0.25, 0.5)]
    sweep = Sweep([varied(method) for method in made])
    assert not spy_on(sweep, "run")
    equal(sweep, [varied(method) for method in made])
    assert not sweep.apart


def test_what_does_not_share_a_stack() -> None:
    kind = Sweep.kind(one("fedavg", 0))
    assert kind == Sweep.kind(one("fedavg", 1))
    assert kind != Sweep.kind(one("fedper", 0))
    assert kind != Sweep.kind(one("fedavg", 1, engine="loop"))
    assert kind != Sweep.kind(one("fedavg", 0, rounds=4))
    longer = replace(small("fedavg"), epochs=3)
    assert Sweep.kind(varied(small("fedavg"))) != Sweep.kind(varied(longer))


# --- a hyperparameter that differs ---


def test_each_gives_the_clients_own_value() -> None:
    sim = varied(small("fedavg"))
    by_client = PerClient(frozenset({"mu"}), torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).double())
    local = sim.engine.local([3, 0], 0)
    assert local.each(0.5).tolist() == [0.5, 0.5]
    assert local.each(by_client).tolist() == [4.0, 1.0]
    assert local.each(2 * (1 - by_client) ** 2 / -by_client).tolist() == [-4.5, 0.0]
    assert local.each(2.0**by_client + by_client).tolist() == [20.0, 3.0]


@pytest.mark.parametrize(
    "use",
    [
        bool,
        float,
        str,
        range,
        hash,
        lambda v: v == 0,
        lambda v: v < 1,
        lambda v: v * torch.ones(2),
        lambda v: torch.ones(2) * v,
        lambda v: torch.full((2,), v),
        lambda v: torch.ones(2).mul_(v),
        lambda v: f"{v}",
    ],
)
def test_any_other_use_of_it_is_refused(use: Any) -> None:
    with pytest.raises(Apart, match="mu"):
        use(PerClient(frozenset({"mu"}), torch.ones(2).double()))


class Careless(FedProx):
    """Local work that treats its hyperparameter as a number."""

    def fit(self, down: Any, mine: Any, local: Local) -> Any:
        return {"model": tree.scale(down["model"], 1 - self.mu)}, mine


def test_a_method_that_knows_nothing_of_sweeps_is_right_too() -> None:
    made = [Careless(mu=mu) for mu in (0.1, 0.2)]
    sweep = Sweep([varied(method) for method in made])
    equal(sweep, [varied(method) for method in made])
    assert sweep.apart == {"mu"}


# --- evaluation ---


def spy_on(sweep: Sweep, what: str) -> list[list[int]]:
    """The clients of every call of the sweep's own engine."""
    calls: list[list[int]] = []
    done = getattr(sweep.engine, what)

    def kept(*args: Any, **options: Any) -> Any:
        calls.append(list(args[0 if what == "run" else 1]))
        return done(*args, **options)

    setattr(sweep.engine, what, kept)
    return calls


def count(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Models in every call of any engine's evaluation."""
    calls: list[int] = []
    done = StackedEngine.evaluate

    def kept(self: Any, params: Any, ids: Any, part: Any) -> Any:
        calls.append(len(ids))
        return done(self, params, ids, part)

    monkeypatch.setattr(StackedEngine, "evaluate", kept)
    return calls


def test_all_simulations_are_tested_in_one_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep([varied(small("fedper"), seed) for seed in (0, 1, 2)])
    calls = count(monkeypatch)
    sweep.step()
    assert calls == [9, 15]  # after local work, and everybody's personal model


def test_what_clients_share_is_tested_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = varied(small("fedavg"))
    calls = count(monkeypatch)
    done = sim.step()
    assert calls == [3, 5]
    np.testing.assert_array_equal(done.clients["accuracy_before"], done.clients["accuracy_global"])
    np.testing.assert_array_equal(done.clients["loss_before"], done.clients["loss_global"])


@pytest.mark.parametrize("name", ["local", "ditto", "fedas", "pfedme"])
def test_what_did_not_change_since_local_work_is_not_tested_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of five clients trained: of the others' models nothing is known."""
    sim = varied(small(name))
    calls = count(monkeypatch)
    done = sim.step()
    shared = [5] if name in ("ditto", "pfedme") else []
    assert calls == [3, *shared, 2]
    trained = done.clients["started"]
    for what in ("accuracy", "loss"):
        before, after = (done.clients[f"{what}_{series}"] for series in ("before", "after"))
        np.testing.assert_array_equal(before[trained], after[trained])
        assert np.isfinite(before).all() and np.isnan(after[~trained]).all()
    scores = sim.engine.evaluate(sim._personal([0, 1, 2, 3, 4]), [0, 1, 2, 3, 4], "test")
    np.testing.assert_allclose(done.clients["accuracy_before"], scores[0] / 12)
    np.testing.assert_allclose(done.clients["loss_before"], scores[1] / 12)


def test_models_mixed_after_local_work_are_tested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count(monkeypatch)
    varied(small("feddwa")).step()
    assert calls == [3, 5]


def test_same_tells_client_by_client() -> None:
    a = {"w": torch.arange(6.0).reshape(3, 2), "b": torch.zeros(3)}
    b = {
        "w": a["w"] + torch.tensor([[0.0], [1.0], [0.0]]),
        "b": torch.tensor([0.0, 0.0, torch.nan]),
    }
    assert tree.same(a, b).tolist() == [True, False, False]


def test_adapted_and_copied_models_are_tested_on_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = count(monkeypatch)
    varied(small("fedavg_ft")).step()
    assert calls == [3, 5, 5]


def test_shared_validation_parts_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    val = tuple(rows[:2] for rows in RAGGED.train)
    sim = simulation(small("fedavg"), replace(RAGGED, val=val), model(Plain), 2)
    calls = count(monkeypatch)
    done = sim.step()
    assert calls == [5, 5, 5, 5]  # after: test, val; the shared model: test, val
    assert np.isfinite(done.clients["val_accuracy_before"]).all()


def test_shows_is_about_storage_not_values() -> None:
    shared = {"w": torch.arange(6.0).reshape(2, 3)}
    assert tree.shows(tree.expand(shared, 4), shared)
    assert tree.shows(tree.expand(shared, 1), shared)
    assert not tree.shows(tree.clone(tree.expand(shared, 4)), shared)
    assert not tree.shows(tree.expand({"w": shared["w"].clone()}, 4), shared)
    assert not tree.shows(tree.expand({"w": shared["w"].T}, 4), shared)
    assert not tree.shows(tree.expand(shared, 4), {})


def test_runs_that_do_not_fit_side_by_side_are_done_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with L2C, whose clients are sent everybody's models."""
    joined = Sweep([one("l2c", s) for s in (0, 1)])
    narrow = Sweep([one("l2c", s) for s in (0, 1)])
    seen: list[int] = []
    run = joined.engine.run
    monkeypatch.setattr(joined.engine, "run", lambda *a, **o: (seen.append(1), run(*a, **o))[1])
    joined.step()
    assert seen
    monkeypatch.setattr(devices, "free_memory", lambda device: 1000)
    monkeypatch.setattr(narrow.engine, "run", lambda *a, **o: pytest.fail("joined"))
    narrow.step()
    for a, b in zip(joined.simulations, narrow.simulations, strict=True):
        for (name, x), y in zip(a.state()[0].items(), b.state()[0].values(), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-12, equal_nan=True, msg=name)


def test_models_of_different_settings_are_tested_together() -> None:
    """Also where a setting of fine-tuning is a word for one and a number for another."""
    made = [replace(small("fedavg_ft"), ft_batch_size=size) for size in ("full", 8)]
    equal(Sweep([varied(method) for method in made]), [varied(method) for method in made])


def test_clients_with_starting_points_of_their_own_train_for_themselves() -> None:
    """Simulations that are alike but for what their clients start from."""
    other = {n: 2 * v for n, v in model().state_dict().items()}

    def pair() -> list[Simulation]:
        starts: list[Any] = [None, {0: other, 2: other}]
        how = {"participation": 0.6, "seed": 1}
        return [
            simulation(small("local_ft"), RAGGED, model(), clients_init=s, **how) for s in starts
        ]

    equal(Sweep(pair()), pair())
