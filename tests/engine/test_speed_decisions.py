"""Decisions that make the stacked engine fast, each of which a change could undo without moving a
number: what is counted here is the work done, not its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch.nn.functional as F
from torch import Tensor

from idiolect import methods
from idiolect.core import devices, tree
from idiolect.core.method import Record, cross_entropy
from idiolect.core.net import Net
from idiolect.core.tree import Tree
from idiolect.engine import cuda_graphs as graphs
from idiolect.engine.cuda_graphs import CapturedStep, CapturedSteps
from idiolect.engine.samples import Samples, SampleWindow
from idiolect.engine.stacked import StackedEngine
from idiolect.engine.steps import Step
from idiolect.engine.train import SgdStep
from idiolect.methods.fedavg import FedAvg
from idiolect.simulation.requests import Rejoin, Task
from idiolect.simulation.schedule import Stragglers
from idiolect.simulation.side_by_side import Sweep
from tests.conftest import SmallNet, ragged_federation, simulation
from tests.engine.engines import local_of, stacked
from tests.methods.plain import CLIENTS, START, assert_same

SIZES = (24, 30, 7, 40, 33)  # samples of the clients
BATCH = 8
STEPS = [3, 4, 1, 5, 5]  # of each client in an epoch


def count_steps(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Every step that any stack takes from now on."""
    taken: list[Step] = []
    step = SgdStep.step

    def counted(self: SgdStep, one: Step, *args: Any) -> None:
        taken.append(one)
        step(self, one, *args)

    monkeypatch.setattr(SgdStep, "step", counted)
    return taken


def clients_in(step: Step) -> int:
    return len(step.size)


# --- captured steps ---


def test_a_round_of_fedavg_is_captured_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU; the same buffers and steps run here without one."""
    sim = simulation(FedAvg(batch_size=BATCH), ragged_federation(SIZES), SmallNet(), 3)
    engine: Any = sim.engine
    engine.captured_steps = CapturedSteps(engine.samples)
    replayed: list[int] = []
    captured: list[int] = []
    body, capture = CapturedStep.body, CapturedStep._capture

    def counted(self: CapturedStep, k: int) -> None:
        replayed.append(k)
        body(self, k)

    def noted(self: CapturedStep, k: int) -> Any:
        captured.append(k)
        return capture(self, k)

    monkeypatch.setattr(CapturedStep, "body", counted)
    monkeypatch.setattr(CapturedStep, "_capture", noted)
    taken = count_steps(monkeypatch)
    for t in range(3):
        sim.step()
        # 5, 4, 4, 3 and 2 clients have a first to fifth step; stacks of 5, 3 and 1 are captured.
        assert replayed[5 * t :] == [5, 5, 5, 3, 3]
    assert captured == [5, 3]  # in the first round, and never again
    assert len(engine.captured_steps.captured) == 1
    assert len(taken) == len(replayed)  # no step went past the captured ones


def test_inputs_are_normalised_once_if_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathering a batch is one kernel then. A window is filled again and again, so it is not."""
    normalised: list[int] = []
    monkeypatch.setattr(Samples, "normalise", lambda self: normalised.append(1))
    sim = simulation(FedAvg(), ragged_federation(SIZES), SmallNet(), 2)
    for room, expected in ((1 << 40, 1), (1 << 10, 0)):
        samples = sim.engine.samples
        monkeypatch.setattr(devices, "free_memory", lambda device, room=room: room)
        samples._prepared = False
        samples._gathered = 0
        normalised.clear()
        samples.prepare()
        assert not normalised  # on a CPU it does not pay yet
        samples._gathered = len(samples.x)
        for _ in range(2):
            samples.prepare()
        assert len(normalised) == expected
    away = simulation(FedAvg(), ragged_federation(SIZES), SmallNet(), 2, keep="host").engine.samples
    assert isinstance(away, SampleWindow)
    monkeypatch.setattr(devices, "free_memory", lambda device: 1 << 40)
    away.prepare()
    assert not normalised


def test_samples_are_prepared_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    prepare, step = Samples.prepare, SgdStep.step
    sim = simulation(FedAvg(), ragged_federation(SIZES), SmallNet(), 2)
    monkeypatch.setattr(Samples, "prepare", lambda self: (order.append("p"), prepare(self))[1])
    monkeypatch.setattr(SgdStep, "step", lambda self, *a: (order.append("s"), step(self, *a))[1])
    sim.step()
    assert order[0] == "p" and "s" in order


def test_a_captured_step_reads_its_numbers_with_two_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Positions and labels in one, weights, sizes and scales in the other; then the inputs."""
    selects: list[int] = []
    select = Tensor.index_select
    sim = simulation(FedAvg(batch_size=BATCH), ragged_federation(SIZES), SmallNet(), 2)
    engine: Any = sim.engine
    engine.captured_steps = CapturedSteps(engine.samples)
    sim.step()
    (step,) = engine.captured_steps.captured
    step.counter.zero_()
    monkeypatch.setattr(Tensor, "index_select", lambda *a: (selects.append(1), select(*a))[1])
    step.body(5)
    assert len(selects) == 2


# --- the stack ---


@dataclass(frozen=True)
class Counting(FedAvg):
    """FedAvg whose loss notes every call."""

    def fit(self, down: Record, mine: Record, local: Any) -> tuple[Record, Record]:
        return {"model": self.train(local, down["model"], noted_loss)}, {}


CALLS: list[int] = []


def noted_loss(net: Net, params: Tree, x: Tensor, y: Tensor) -> Tensor:
    CALLS.append(1)
    return cross_entropy(net, params, x, y)


def test_one_call_of_the_loss_serves_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulation(Counting(batch_size=BATCH), ragged_federation(SIZES), SmallNet(), 2)
    taken = count_steps(monkeypatch)
    CALLS.clear()
    sim.step()
    assert len(CALLS) == len(taken) == max(STEPS)
    assert clients_in(taken[0]) == len(SIZES)


def test_the_stack_shrinks_as_clients_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulation(FedAvg(batch_size=BATCH), ragged_federation(SIZES), SmallNet(), 2)
    taken = count_steps(monkeypatch)
    sim.step()
    assert [clients_in(step) for step in taken] == [sum(n > t for n in STEPS) for t in range(5)]
    assert all(isinstance(step.who, slice) for step in taken)  # rows of the stack, not copies


def test_very_wide_batches_are_not_filled_up_far(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulation(
        methods.build({"name": "local", "batch_size": "full"}),
        ragged_federation((700, 600, 90, 70)),
        SmallNet(),
        2,
    )
    taken = count_steps(monkeypatch)
    sim.step()
    assert [clients_in(step) for step in taken] == [2, 2]


def by_class(net: Net, params: Tree, x: Tensor, y: Tensor) -> Tensor:
    """Every class of the batch counts the same; filling does not count."""
    each = F.cross_entropy(net(params, x), y, reduction="none", ignore_index=-1)
    same = (y[:, None] == y[None, :]).sum(1)
    return (each / same).sum()


@pytest.mark.parametrize("captured", [False, True])
def test_coupled_loss_that_knows_filling(captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of `coupled=True` in fewer steps."""
    ids = [3, 1, 2, 0]
    how = {"lr": 0.1, "batch_size": 4, "epochs": 2}
    true = local_of("stacked", ids).sgd(by_class, stacked(START, 4), coupled=True, **how).params
    monkeypatch.setattr(graphs, "MIN_STEPS_TO_CAPTURE", 1)
    local: Any = local_of("stacked", ids)
    if captured:
        local.captured_steps = CapturedSteps(local.samples)
    taken = count_steps(monkeypatch)
    filled = local.sgd(by_class, stacked(START, 4), coupled="filled", **how).params
    assert_same(filled, true, 1e-13)
    assert len(taken) == 2 * -(-max(len(CLIENTS[i]) for i in ids) // 4)
    for k, i in enumerate(ids):
        alone = local_of("loop", [i]).sgd(by_class, stacked(START, 1), coupled="filled", **how)
        assert_same(tree.client(filled, k), tree.client(alone.params, 0), 1e-13)


# --- evaluation, and several simulations ---


def test_one_shared_model_is_tested_in_common_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulation(FedAvg(batch_size=BATCH), ragged_federation(SIZES), SmallNet(), 2)
    shared: list[int] = []
    path = StackedEngine._evaluate_shared

    def counted(self: StackedEngine, params: Tree, ids: Any, part: Any) -> Any:
        shared.append(len(ids))
        return path(self, params, ids, part)

    monkeypatch.setattr(StackedEngine, "_evaluate_shared", counted)
    done = sim.step()
    assert shared == [len(SIZES)]  # the global model of all clients, and nothing else
    assert np.isfinite(done.clients["accuracy_global"]).all()


def test_late_work_of_several_seeds_rejoins_in_one_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(seed: int) -> Any:
        method = methods.build({"name": "plga", "batch_size": BATCH})
        stragglers = Stragglers(periods=(1, 2))
        return simulation(
            method, ragged_federation(SIZES), SmallNet(), 3, stragglers=stragglers, seed=seed
        )

    sweep = Sweep([late(0), late(0)])
    clients: list[int] = []
    do = Rejoin.do

    def counted(self: Rejoin, *args: Any) -> Any:
        clients.append(len(self.ids))
        return do(self, *args)

    monkeypatch.setattr(Rejoin, "do", counted)
    tasks: list[Task] = []
    joint = sweep._joint
    monkeypatch.setattr(sweep, "_joint", lambda t: (tasks.extend(t.values()), joint(t))[1])
    for _ in range(3):
        sweep.step()
    asked = [len(t.ids) for t in tasks if isinstance(t, Rejoin)]
    assert len(asked) == 2 * len(clients) > 0 and sum(clients) == sum(asked)
