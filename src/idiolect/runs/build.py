"""From a resolved config to a simulation ready to run."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from idiolect.core import own_code
from idiolect.core.fields import make
from idiolect.runs.config import RunConfig, own_names

if TYPE_CHECKING:
    from idiolect.data import Federation
    from idiolect.simulation.simulation import Simulation


def build(config: dict[str, Any], allow_code: Collection[str] = ()) -> Simulation:
    """Build method, federation, model and schedule; each raises a UserError for settings it does
    not know. Own code that the config names is loaded only if `allow_code` names it too."""
    from idiolect import methods, models
    from idiolect.data import splits
    from idiolect.simulation.simulate import prepare

    run = make(RunConfig, config, "a run")
    method = methods.build(run.method, allow_code)
    for line in splits.split(run.split, allow_code).without_effect():
        warnings.warn(line, stacklevel=2)
    federation = load_federation(config, allow_code)
    shape, classes, form = federation.shape, federation.classes, federation.form
    section = {"name": models.default_model(shape, form), **run.model}
    model = models.build(section, shape, classes, run.seed, allow_code, form)
    return prepare(method, federation, model, run, allow_code=allow_code)


def builder(
    config: dict[str, Any], allowed: Collection[str], source: Any
) -> Callable[[dict[str, Any]], Simulation]:
    """`build` for configs that name the code this one names. Own code that was not allowed is
    refused now, before anything is read or written; `source` is what names it."""
    for section, name in own_names(config).items():
        own_code.require(name, allowed, f"{_key(section)} of {source}")
    return partial(build, allow_code=allowed)


def load_federation(config: dict[str, Any], allow_code: Collection[str] = ()) -> Federation:
    """The federation of a config; the last one is kept, as methods share their clients."""
    from idiolect.data import datasets

    stamp = datasets.dataset(config["data"]).stamp
    for section, name in own_names(config).items():
        if section in ("data", "split", "data.metric"):
            own_code.require(name, allow_code, _key(section))  # also where it was called before
            stamp += own_code.fingerprint(name)
    key = json.dumps([config["data"], config["split"], config["seed"]])
    return _federation(key, stamp, tuple(allow_code))


def _key(section: str) -> str:
    """The setting that names own code: of `model` it is `model.name`."""
    return section if "." in section else f"{section}.name"


@lru_cache(maxsize=1)
def _federation(key: str, stamp: str, allow_code: tuple[str, ...]) -> Federation:
    from idiolect import data as federation

    data, split, seed = json.loads(key)
    return federation.build(data, split, seed, allow_code)
