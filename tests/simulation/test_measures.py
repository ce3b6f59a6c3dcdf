"""What `measure` adds to a run, against plain PyTorch; and that it changes nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from idiolect import methods
from idiolect.engine.layers import linear
from idiolect.errors import UserError
from idiolect.simulation import metrics
from idiolect.simulation.measures import Measures
from idiolect.simulation.settings import SimulationOptions
from idiolect.simulation.side_by_side import Sweep
from idiolect.simulation.simulate import simulate
from idiolect.simulation.summary import as_event
from tests.conftest import ENGINES, simulation
from tests.methods.plain import (
    CLIENTS,
    NET,
    START,
    TINY,
    angle,
    batches,
    federate,
    gradient,
    model_with,
    vector,
)
from tests.watched import Watched

WHO = [[0, 1, 3], [1, 2], [0, 2]]
STEP = {"lr": 0.2, "batch_size": 4, "order": "fixed"}
ALL = Measures(train=True, fisher=True, flops=True, gradients=True)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["fedavg", "fedper", "pflego"])
def test_training_loss_is_the_mean_over_all_samples_of_all_clients(name: str, engine: str) -> None:
    """PFLEGO's Eq. 1, at the model each client has, absent clients too."""
    method = {"name": name} | ({} if name == "pflego" else STEP)
    how = {"engine": engine, "schedule": WHO, "measure": Measures(train=True)}
    ran = Watched(method, TINY, NET, 3, **how)
    for t in range(3):
        loss = right = 0.0
        for i, client in enumerate(CLIENTS):
            with torch.no_grad():
                out = model_with(ran.personal[t][i])(client.x)
            loss += float(F.cross_entropy(out, client.y, reduction="sum"))
            right += int((out.argmax(1) == client.y).sum())
        found = as_event(ran.rounds[t])["measured"]
        total = sum(map(len, CLIENTS))
        assert found["train_loss"] == pytest.approx(loss / total, rel=1e-9)
        assert found["train_accuracy"] == pytest.approx(right / total)
        assert set(found) == {f"train_{w}{s}" for w in ("loss", "accuracy") for s in ("", "_after")}


def test_training_loss_after_local_work_is_of_those_who_trained() -> None:
    ran = Watched({"name": "fedavg", **STEP}, TINY, NET, 2, schedule=WHO, measure=ALL)
    for t in range(2):
        loss, total = 0.0, 0
        for k, i in enumerate(ran.rounds[t].started):
            with torch.no_grad():
                out = model_with(ran.up(t, "model", k))(CLIENTS[i].x)
            loss += float(F.cross_entropy(out, CLIENTS[i].y, reduction="sum"))
            total += len(CLIENTS[i])
        found = as_event(ran.rounds[t])["measured"]
        assert found["train_loss_after"] == pytest.approx(loss / total, rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["fedas", "fedavg", "pflego"])
def test_fisher_traces_of_everybody(name: str, engine: str) -> None:
    method = {"name": name} | ({} if name == "pflego" else STEP)
    how = {"engine": engine, "schedule": WHO, "measure": Measures(fisher=True)}
    ran = Watched(method, TINY, NET, 2, **how)
    for t in range(2):
        for i, client in enumerate(CLIENTS):
            rows = batches(len(client), None if name == "pflego" else 4)
            squares = [vector(gradient(ran.personal[t][i], client, b)).square().sum() for b in rows]
            found = ran.rounds[t].clients["fisher_trace"][i]
            assert found == pytest.approx(float(sum(squares)), rel=1e-9)


def test_passes_of_the_network() -> None:
    def passes(**method: object) -> list[float]:
        ran = Watched(method, TINY, NET, 1, schedule=[[0, 2]], measure=Measures(flops=True))
        return ran.rounds[0].clients["passes"].tolist()

    nan = pytest.approx(np.nan, nan_ok=True)
    assert passes(name="fedavg", epochs=3, batch_size=4) == [3, nan, 3, nan]
    assert passes(name="pflego", tau=50) == [2, nan, 2, nan]
    assert passes(name="feddwa") == [2, nan, 2, nan]
    assert passes(name="fedper", batch_size="full", epochs=50) == [50, nan, 50, nan]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("onednn", [False, True])
def test_flops_in_closed_form(engine: str, onednn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer of I x O costs 2 n I O forward and as much for its weights, and for its inputs where
    they are not the samples: 3, 4 and 4 inputs here, 4, 4 and 3 outputs; whoever computes it."""
    if onednn and not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(linear, "MIN_PRODUCTS_FOR_ONEDNN", 0 if onednn else 10**12)
    monkeypatch.setattr(linear, "onednn_is_faster", lambda: onednn)
    how = {"engine": engine, "measure": Measures(flops=True), "dtype": "float32"}
    ran = Watched({"name": "fedavg", "epochs": 2, "batch_size": 4}, TINY, NET, 1, **how)
    forward = 3 * 4 + 4 * 4 + 4 * 3
    each = 2 * (forward + forward + (forward - 3 * 4))
    expected = [2 * len(c) * each for c in CLIENTS]
    assert ran.rounds[0].clients["flops"].tolist() == expected
    assert as_event(ran.rounds[0])["measured"]["flops"] == pytest.approx(np.mean(expected))


@pytest.mark.parametrize("engine", ENGINES)
def test_similarity_of_updates_by_layer(engine: str) -> None:
    how = {"engine": engine, "schedule": WHO, "measure": Measures(gradients=True)}
    ran = Watched({"name": "fedavg", **STEP}, TINY, NET, 1, **how)
    for layer in ("body.0", "body.2", "head"):
        shown = ran.logs(0)[f"gradient_similarity/{layer}"]
        name = f"{layer}.weight"
        moved = {i: ran.up(0, "model", k)[name] - START[name] for k, i in enumerate(WHO[0])}
        pairs = [(i, j) for i in moved for j in moved]
        for i, j in pairs:
            expected = angle(moved[i].flatten(), moved[j].flatten())
            assert shown[i, j].item() == pytest.approx(expected, abs=1e-9)
        assert shown[2].isnan().all() and shown[:, 2].isnan().all()
        between = [float(shown[i, j]) for i, j in pairs if i != j]
        found = as_event(ran.rounds[0])["measured"]["gradient_similarity"]
        assert found[layer] == pytest.approx(np.mean(between), abs=1e-9)


def test_guidance_models_are_tested() -> None:
    how = {"schedule": WHO, "measure": Measures(guidance=True)}
    ran = Watched({"name": "feddwa", **STEP}, TINY, NET, 1, **how)
    for k, i in enumerate(WHO[0]):
        with torch.no_grad():
            out = model_with(ran.up(0, "guidance", k))(CLIENTS[i].x)
        right = (out.argmax(1) == CLIENTS[i].y).double().mean()
        assert ran.rounds[0].clients["accuracy_guidance"][i] == pytest.approx(float(right))
    assert np.isnan(ran.rounds[0].clients["accuracy_guidance"][2])
    with pytest.raises(UserError, match="fedavg has no guidance model"):
        Watched({"name": "fedavg", **STEP}, TINY, NET, 1, **how)


@pytest.mark.parametrize("name", sorted(methods.REGISTRY))
def test_measuring_changes_nothing(name: str) -> None:
    method = methods.build(name)
    plain, measured = (
        simulation(method, TINY, NET, 2, schedule=WHO[:2], measure=m) for m in (None, ALL)
    )
    for sim in (plain, measured):
        sim.start()
        done = [sim.step(), sim.step()]
    assert set(metrics.measured(done[-1].clients, done[-1].logs)) >= {"train_loss", "fisher_trace"}
    ours, theirs = (sim._personal([0, 1, 2, 3]) for sim in (measured, plain))
    assert all(torch.equal(ours[n], theirs[n]) for n in theirs)


def test_side_by_side_measures_what_each_would_alone() -> None:
    def one(seed: int):
        return simulation(
            methods.build({"name": "fedas", **STEP}), TINY, NET, 2, seed=seed, measure=ALL
        )

    sweep = Sweep([one(0), one(1)])
    both = [sweep.start(), sweep.step(), sweep.step()]
    for k, seed in enumerate((0, 1)):
        alone = one(seed)
        for together, own in zip(both, [alone.start(), alone.step(), alone.step()], strict=True):
            for name in ("train_loss_before", "fisher_trace", "flops", "passes"):
                ours, theirs = together[k].clients[name], own.clients[name]
                np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_summary_and_checkpoint() -> None:
    made = simulate("fedavg", TINY, NET, rounds=3, measure="train,flops", dtype="float64")
    last = as_event(made.rounds[-1])["measured"]
    assert made.summary["measured"]["train_loss"] == last["train_loss"]
    assert "measured" not in simulate("fedavg", TINY, NET, rounds=1).summary
    how = {"measure": Measures(train=True), "schedule": WHO}
    first, second = (simulation(methods.build("fedavg"), TINY, NET, 3, **how) for _ in range(2))
    first.start()
    first.step()
    second.restore(*first.state())
    one, two = (as_event(sim.step())["measured"] for sim in (first, second))
    assert one == two


def test_forms_of_the_setting() -> None:
    for form in ("train, fisher", ["train", "fisher"], {"train": True, "fisher": True}):
        made = SimulationOptions(measure=form)  # type: ignore[arg-type]
        assert made.measure == Measures(train=True, fisher=True)
        assert made.as_dict()["measure"] == {"train": True, "fisher": True}
    assert not SimulationOptions().measure
    with pytest.raises(UserError, match=r"unknown measure 'flop'.*flops"):
        SimulationOptions(measure="flop")  # type: ignore[arg-type]


def test_a_round_without_a_test_measures_nothing() -> None:
    done = simulate("fedavg", TINY, NET, rounds=2, eval_every=2, measure="train").rounds
    assert ["measured" in as_event(one) for one in done] == [True, False, True]


def test_networks_whose_layers_are_used_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
            self.head = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.body(self.body(x)))
            return out

    done = simulate("fedavg", federate(CLIENTS), Twice().double(), rounds=1, measure="flops")
    assert done.summary["measured"]["passes"] == 1


def test_passes_of_a_loss_of_ones_own() -> None:
    """It shows the network every batch twice."""

    def steady(net, params, x, y):  # type: ignore[no-untyped-def]
        known = F.cross_entropy(net(params, x), y, reduction="none")
        return known + (net(params, x + 0.1) - net(params, x)).square().sum(1)

    how = {"rounds": 1, "measure": "flops", "dtype": "float64", "loss": steady}
    done = simulate("fedavg", TINY, NET, **how)  # type: ignore[arg-type]
    assert done.summary["measured"]["passes"] == 3
