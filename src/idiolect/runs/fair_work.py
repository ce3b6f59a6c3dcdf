"""A fair fight: the methods of a comparison do the same local work unless told otherwise.

Papers trained for one epoch or for five, with learning rates that differ ten times. A table of
their defaults would compare those, so a comparison has one value of each for all.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from idiolect.core.fields import default_of
from idiolect.core.method import SgdMethod
from idiolect.core.own_code import called
from idiolect.methods import REGISTRY
from idiolect.runs.config import parse_set

LOCAL_WORK = ("lr", "epochs", "steps", "batch_size")


def shared_work(method: str, file: Mapping[str, Any], sets: Sequence[str]) -> dict[str, Any]:
    """The settings of local work that `sets` do not give for this method, as all methods have them:
    those of the settings file, whichever method it names, else the defaults. Methods without local
    SGD have none of them and keep their own."""
    if not issubclass(REGISTRY[method], SgdMethod):
        return {}
    section = _section(file)
    work = {key: section[key] for key in LOCAL_WORK if key in section}
    told = {key for item in sets for key in _told(method, parse_set(item))}
    fields = SgdMethod.__dataclass_fields__
    default = {key: default_of(fields[key]) for key in LOCAL_WORK}
    if "steps" in told or work.get("steps"):  # they come instead of epochs
        del default["epochs"]
    return {key: value for key, value in {**default, **work}.items() if key not in told}


def _section(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    section = layer.get("method")
    return section if isinstance(section, Mapping) else {}


def _told(method: str, layer: Mapping[str, Any]) -> set[str]:
    """What a layer of settings says about this method."""
    section = _section(layer)
    return set(section) if section.get("name", method) == method else set()


def keeps_its_own(methods: Sequence[str]) -> list[str]:
    """The methods whose local work is not local SGD, as they are called."""
    apart = [name for name in methods if not issubclass(REGISTRY[name], SgdMethod)]
    return list(map(called, apart))
