"""The settings that simulate() and the command line share."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from idiolect.core.fields import choices, hints
from idiolect.core.storage import KEEP
from idiolect.engine.select import DTYPES, ENGINES
from idiolect.errors import UserError
from idiolect.simulation.protocols import PROTOCOLS, ProtocolName
from idiolect.simulation.schedule import Stragglers
from idiolect.simulation.settings import SimulationOptions
from idiolect.simulation.simulate import simulate


def test_words_are_those_that_the_simulation_knows() -> None:
    known = hints(SimulationOptions)
    assert set(choices(known["engine"])) == set(ENGINES)
    assert set(choices(known["dtype"])) == set(DTYPES)
    assert set(choices(known["keep"])) == set(KEEP)
    assert get_args(ProtocolName) == tuple(PROTOCOLS)


def test_simulate_lists_every_option_with_its_default() -> None:
    listed = inspect.signature(simulate).parameters
    names = {known.name for known in fields(SimulationOptions)}
    objects = {"method", "federation", "model", "clients_init", "on_round", "unknown"}
    assert set(listed) == names | objects
    defaults = SimulationOptions(**{name: listed[name].default for name in names})
    assert defaults == SimulationOptions(save_models="last")  # there is no directory to keep them


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"engine": "stackd"}, "did you mean 'stacked'"),
        ({"device": "gpu"}, "known: auto, cpu, cuda"),
        ({"protocol": "fedass"}, "did you mean 'fedas'"),
        ({"init": "/nowhere"}, "does not exist"),
        ({"schedule": 5}, "schedule must be a path or a list of values"),
        ({"stragglers": "many"}, "stragglers must be a number of clients"),
    ],
)
def test_mistakes(given: dict[str, Any], hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        SimulationOptions(**given)


def test_numpy_scalars_are_numbers() -> None:
    made = SimulationOptions(rounds=np.int64(3), seed=np.uint8(2), eval_every=np.int32(1))  # type: ignore[arg-type]
    assert (made.rounds, made.seed) == (3, 2) and type(made.rounds) is int


def test_settings_without_effect(tmp_path: Path) -> None:
    file = tmp_path / "who.json"
    file.write_text("[[0]]")
    assert SimulationOptions(schedule=file).without_effect() == []
    made = SimulationOptions(schedule=file, participation=0.5)  # type: ignore[arg-type]
    assert made.without_effect() == ["participation has no effect while schedule is given"]
    both = SimulationOptions(stragglers=Stragglers(2, periods=(1,)))
    assert both.without_effect() == [
        "stragglers.count has no effect while stragglers.periods is given"
    ]
