"""How many calls lie between a round and the loss of a local step: few enough to read."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from torch import Tensor

import idiolect
from idiolect import methods
from idiolect.core.net import Net
from idiolect.engine import cuda_graphs as graphs
from idiolect.engine.stacked import StackedEngine
from idiolect.simulation.side_by_side import Sweep
from tests.conftest import SmallNet, ragged_federation, simulation

PACKAGE = str(Path(idiolect.__file__).parent)
MAX_FRAMES = 20  # of the package, from the round to the loss, both counted
MAX_FRAMES_WITH_TORCH = 24  # … with those of PyTorch


class Chain:
    """The longest chain of frames from `root` to a network's caller while it trains."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: str):
        self.frames: list[str] = []
        call = Net.__call__

        def watched(net: Net, params: Any, x: Tensor) -> Tensor:
            if net.training:
                self._note(sys._getframe(1), root)
            return call(net, params, x)

        monkeypatch.setattr(Net, "__call__", watched)

    def _note(self, frame: FrameType | None, root: str) -> None:
        found = []
        while frame is not None:
            file = frame.f_code.co_filename.replace(PACKAGE, "idiolect")
            found.append(f"{file}: {frame.f_code.co_qualname}")
            if frame.f_code.co_qualname == root:
                if len(found) > len(self.frames):
                    self.frames = found[::-1]
                return
            frame = frame.f_back

    @property
    def of_package(self) -> list[str]:
        return [f for f in self.frames if f.startswith("idiolect")]

    def check(self) -> None:
        assert "cross_entropy" in self.frames[-1], "the chain does not end in the loss"
        shown = "\n".join(self.frames)
        assert len(self.of_package) <= MAX_FRAMES, f"{len(self.of_package)} frames:\n{shown}"
        assert len(self.frames) <= MAX_FRAMES_WITH_TORCH, f"{len(self.frames)} frames:\n{shown}"


def begin(kind: str, name: str = "fedavg", **options: Any) -> Any:
    engine = "loop" if kind == "loop" else "stacked"
    method = methods.build({"name": name, "batch_size": 4})
    sim: Any = simulation(method, ragged_federation(), SmallNet(), 2, engine=engine, **options)
    if kind == "captured":
        sim.engine.captured_steps = graphs.CapturedSteps(sim.engine.samples)
    return sim


@pytest.mark.parametrize("kind", ["loop", "stacked", "captured", "client by client"])
def test_a_local_step_is_few_calls_away(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "client by client":
        monkeypatch.setattr(StackedEngine, "narrow_on_cpu", True)
        monkeypatch.setattr("idiolect.engine.stacked.MIN_ACTIVATION_BYTES_TO_NARROW", 1)
    sim = begin(kind)
    chain = Chain(monkeypatch, "Simulation.step")
    sim.step()
    chain.check()
    used = {"captured": "cuda_graphs.py", "client by client": "threads.py", "loop": "loop.py"}
    assert used.get(kind, "train.py") in "\n".join(chain.frames)  # it is the way it claims to be


@pytest.mark.parametrize("name", ["fedas", "ditto", "feddwa", "spfl", "per_fedavg", "fedavg_ft"])
def test_methods_add_few_calls(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = begin("captured", name)
    monkeypatch.setattr(graphs, "MIN_STEPS_TO_CAPTURE", 1)
    chain = Chain(monkeypatch, "Simulation.step")
    sim.step()
    assert chain.frames
    shown = "\n".join(chain.frames)
    assert len(chain.of_package) <= MAX_FRAMES, f"{len(chain.of_package)} frames:\n{shown}"


def test_several_simulations_add_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep([begin("stacked", seed=seed) for seed in (0, 1)])
    engine: Any = sweep.engine
    engine.captured_steps = graphs.CapturedSteps(engine.samples)
    chain = Chain(monkeypatch, "Sweep.step")
    sweep.step()
    chain.check()


def test_a_long_chain_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(monkeypatch, "Simulation.step")
    chain.frames = [f"idiolect/x.py: f{k}" for k in range(MAX_FRAMES)] + [
        "idiolect/x: cross_entropy"
    ]
    with pytest.raises(AssertionError, match="21 frames"):
        chain.check()
