"""What a settings file says about one method, dataset, split or network, where a run has another.

Options of one mean nothing to another; who gives the file should know which of them are not used.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from idiolect.core.own_code import is_own, whole
from idiolect.runs.config import SECTIONS, Config

LeftOut = dict[str, list[str]]  # keys by section


def left_out(file: Mapping[str, Any], above: Sequence[Mapping[str, Any]], made: Config) -> LeftOut:
    """What `file` says and a run with the resolved config `made` does not have. What the layers of
    settings `above` the file say anew is not told."""
    found = {section: _of(section, file, above, made[section]) for section in SECTIONS}
    return {section: keys for section, keys in found.items() if keys}


def _of(
    section: str, file: Mapping[str, Any], above: Sequence[Mapping[str, Any]], made: Config
) -> list[str]:
    said, none = _section(section, file), object()
    told = {key for layer in above for key in _section(section, layer)}
    # A comparison names its methods itself; all else is that of the file unless another is named.
    another = "name" in said and (section == "method" or "name" in told)
    if not another or made.get("name") in (said["name"], _whole(said["name"])):
        return []
    told.add("name")
    return [key for key in said if key not in told and made.get(key, none) != said[key]]


def _section(section: str, layer: Mapping[str, Any]) -> Mapping[str, Any]:
    found = layer.get(section)
    if isinstance(found, str):
        return {"name": found}
    return found if isinstance(found, Mapping) else {}


def _whole(name: str) -> str:
    return whole(name) if is_own(name) else name
