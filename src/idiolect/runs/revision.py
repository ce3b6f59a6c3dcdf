"""Which revision of its method made a run; env.json has it.

A method raises its `revision` when it computes something else with the same settings. What an
earlier one made is then neither gone on with nor taken for a result of the present one. Runs from
before revisions were written down count as made by the first.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from idiolect.core.fields import make
from idiolect.core.own_code import called, is_own
from idiolect.errors import UserError
from idiolect.methods import REGISTRY
from idiolect.methods import build as built
from idiolect.runs.config import Config
from idiolect.runs.run_files import COUNT, checked, read_json

FIRST = 1


def of(config: Mapping[str, Any]) -> int | None:
    """Of the method with these settings as it is now; None where it is not known: own code that is
    not loaded, or settings of another version."""
    section = config["method"]
    return _of_own(section) if is_own(section.get("name")) else _of_ours(json.dumps(section))


def is_current(config: Config, made_by: int | None) -> bool:
    """Whether the method still computes what it did when this revision of it made the run."""
    now = of(config)
    return None in (now, made_by) or made_by == now


def earlier(configs: Sequence[Config], outs: Sequence[Path]) -> dict[str, str]:
    """The runs that an earlier revision made, by their folders, with words for it."""
    found = {str(out): of_folder(config, out) for config, out in zip(configs, outs, strict=True)}
    return {out: words for out, words in found.items() if words}


def check(out: Path, config: Config) -> None:
    """Refuse to go on with what an earlier revision began."""
    if words := of_folder(config, out):
        # The sites of a real federation keep what they learned: they begin in another folder.
        sites = config["data"]["name"] == "sites"
        begin = "begin in another --out" if sites else (
            f"`idiolect resume {out} --from-start` sets aside what it recorded and begins at round"
            " 0"
        )  # fmt: skip
        raise UserError(f"{words}: it cannot go on; {begin}")


def recorded(env: Mapping[str, Any], where: Path | str) -> int | None:
    """What env.json says; null where the method was not ours to know."""
    found = env.get("revision", FIRST)
    return None if found is None else int(checked(found, COUNT, where, "revision"))


def told(config: Config, env: Mapping[str, Any], out: Path) -> str:
    """Words for a run that an earlier revision made; empty for any other, and for one that has
    recorded nothing yet."""
    made_by = recorded(env, out / "env.json")
    if not env or is_current(config, made_by):
        return ""
    name = called(config["method"]["name"])
    return f"{out} was made by revision {made_by} of {name}, which has revision {of(config)} now"


def of_folder(config: Config, out: Path) -> str:
    """The same, read from the run's folder."""
    return told(config, read_json(out / "env.json"), out)


@lru_cache(maxsize=4096)
def _of_ours(section: str) -> int | None:
    known = json.loads(section)
    try:
        return built(known).revision if known.get("name") in REGISTRY else None
    except UserError:
        return None


def _of_own(section: Mapping[str, Any]) -> int | None:
    options = {key: value for key, value in section.items() if key != "name"}
    try:
        kind = REGISTRY[section["name"]]
        return int(make(kind, options, "method").revision)
    except (KeyError, UserError):
        return None
