"""From a resolved config to a simulation ready to run."""

from __future__ import annotations

import json
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from idiolect.core.fields import make
from idiolect.runs.config import RunConfig

if TYPE_CHECKING:
    from idiolect.data import Federation
    from idiolect.simulation.simulation import Simulation


def build(config: dict[str, Any]) -> Simulation:
    """Build method, federation, model and schedule; each raises a UserError for settings it does
    not know."""
    from idiolect import methods, models
    from idiolect.data import splits
    from idiolect.simulation.simulate import prepare

    run = make(RunConfig, config, "a run")
    method = methods.build(run.method)
    for line in splits.split(run.split).without_effect():
        warnings.warn(line, stacklevel=2)
    federation = load_federation(config)
    section = {"name": models.default_model(federation.shape), **run.model}
    model = models.build(section, federation.shape, federation.classes, run.seed)
    return prepare(method, federation, model, run)


def load_federation(config: dict[str, Any]) -> Federation:
    """The federation of a config; the last one is kept, as methods share their clients."""
    return _federation(json.dumps([config["data"], config["split"], config["seed"]]))


@lru_cache(maxsize=1)
def _federation(key: str) -> Federation:
    from idiolect import data as federation

    data, split, seed = json.loads(key)
    return federation.build(data, split, seed)
