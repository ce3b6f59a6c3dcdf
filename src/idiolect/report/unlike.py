"""Runs that do not belong beside each other: made by an earlier revision of their method, on data
that changed in between, or with own code that did."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from idiolect.core.text import one_line
from idiolect.errors import UserError
from idiolect.runs import revision, seal
from idiolect.runs.config import own_names

if TYPE_CHECKING:
    from idiolect.report.load import Run

NAMED = 3  # runs that are told by name
CLIENTS = ("data", "split", "seed")  # settings that decide who holds which samples

Made = dict[str, list["Run"]]  # runs by what made them


def unlike(found: Sequence["Run"]) -> list[str]:
    """A line for each reason; none where nothing speaks against comparing the runs."""
    return [one_line(line) for line in (*_earlier(found), *_other_data(found), *_other_code(found))]


def _earlier(found: Sequence["Run"]) -> Iterator[str]:
    old: Made = {}
    for run in found:
        if revision.told(run.config, run.env, run.path):
            old.setdefault(run.method, []).append(run)
    for method, runs in old.items():
        yield (
            f"made by an earlier revision of {method}, which computes something else now: "
            f"{_names(runs)}"
        )


def _other_data(found: Sequence["Run"]) -> Iterator[str]:
    same: dict[str, Made] = {}
    for run in found:
        inputs = run.env.get("inputs")
        if isinstance(inputs, dict) and isinstance(digest := inputs.get("data"), str):
            settings = json.dumps([run.config[key] for key in CLIENTS])
            same.setdefault(settings, {}).setdefault(digest, []).append(run)
    for made in same.values():
        if len(made) > 1:
            yield f"the data changed between runs with the same settings of it: {_against(made)}"


def _other_code(found: Sequence["Run"]) -> Iterator[str]:
    same: dict[str, Made] = {}
    for run in found:
        if not own_names(run.config):
            continue
        with suppress(UserError):  # a damaged seal stops no report
            for name, sha256 in seal.code(run.path).items():
                same.setdefault(name, {}).setdefault(sha256, []).append(run)
    for name, made in same.items():
        if len(made) > 1:
            yield f"the code of '{name}' changed between runs: {_against(made)}"


def _against(made: Made) -> str:
    return " against ".join(map(_names, made.values()))


def _names(runs: Sequence["Run"]) -> str:
    names = [run.path.name for run in runs]
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
