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
    from torch import nn

    from idiolect.data import Federation
    from idiolect.simulation.simulation import Simulation


def build(config: dict[str, Any], allow_code: Collection[str] = ()) -> Simulation:
    """Build method, federation, model and schedule; each raises a UserError for settings it does
    not know. Own code that the config names is loaded only if `allow_code` names it too."""
    from idiolect import methods
    from idiolect.data import splits

    run = make(RunConfig, config, "a run")
    methods.build(run.method)  # so that a mistake is found before the data is read
    for line in splits.split(run.split).without_effect():
        warnings.warn(line, stacklevel=2)
    return build_with(config, load_federation(config, allow_code), allow_code)


def build_with(
    config: dict[str, Any], federation: Federation, allow_code: Collection[str] = ()
) -> Simulation:
    """`build`, with clients that are given."""
    from idiolect import methods
    from idiolect.simulation.simulate import prepare

    run = make(RunConfig, config, "a run")
    model = build_model(config, federation, allow_code)
    return prepare(methods.build(run.method), federation, model, run)


def build_model(
    config: dict[str, Any], federation: Federation, allow_code: Collection[str] = ()
) -> nn.Module:
    """The network of a config, with its first weights."""
    from idiolect import models

    section = {"name": models.default_model(federation.shape), **config["model"]}
    shape, classes = federation.shape, federation.classes
    return models.build(section, shape, classes, config["seed"], allow_code)


def builder(
    config: dict[str, Any], allowed: Collection[str], source: Any
) -> Callable[[dict[str, Any]], Simulation]:
    """`build` for configs that name the code this one names. Own code that was not allowed is
    refused now, before anything is read or written; `source` is what names it."""
    for section, name in own_names(config).items():
        own_code.require(name, allowed, f"{section}.name of {source}")
    return partial(build, allow_code=allowed)


def load_federation(config: dict[str, Any], allow_code: Collection[str] = ()) -> Federation:
    """The federation of a config; the last one is kept, as methods share their clients."""
    from idiolect.data import datasets

    if (name := own_names(config).get("data")) is not None:
        own_code.require(name, allow_code, "data.name")  # also where it was called before
    stamp = datasets.dataset(config["data"]).stamp
    key = json.dumps([config["data"], config["split"], config["seed"]])
    return _federation(key, stamp, tuple(allow_code))


@lru_cache(maxsize=1)
def _federation(key: str, stamp: str, allow_code: tuple[str, ...]) -> Federation:
    from idiolect import data as federation

    data, split, seed = json.loads(key)
    return federation.build(data, split, seed, allow_code)
