"""Checkpoints: `round_000010.safetensors` and a JSON file that vouches for it by SHA-256.

The JSON is written last, so a checkpoint without one never existed. The last two are kept: whatever
happens to the newest, the one before is still there, and runs that are computed together always
have a round in common. A run begins with a checkpoint that has no tensors and means "nothing is
saved yet": where not even that is left, a checkpoint was lost.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from idiolect.core import files
from idiolect.errors import UserError

KEPT = 2
FILES = ("begun.json", "round_*.json", "round_*.safetensors")
NOTHING_YET = -1  # the round of the checkpoint that a run begins with
_NAME = re.compile(r"(round_(?P<round>\d{6,})|begun)\.json")


class Damaged(Exception):
    """A checkpoint that does not match its own checksums."""


@dataclass(frozen=True)
class Checkpoint:
    round: int
    meta: dict[str, Any]
    stack: tuple[str, ...]  # digests of the runs it was computed with, itself among them
    weights: Path | None
    sha256: str | None

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(self.weights) if self.weights else {}
        except SafetensorError as error:
            raise Damaged(str(error)) from error


def begin(folder: Path) -> None:
    """The checkpoint before the first round."""
    folder.mkdir(exist_ok=True)
    _write(folder, NOTHING_YET, None, {}, ())


def save(
    folder: Path,
    round: int,
    tensors: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    stack: Sequence[str] = (),
) -> None:
    """Write the checkpoint of one round and drop all but the last two."""
    folder.mkdir(exist_ok=True)
    weights = folder / f"{_stem(round)}.safetensors"
    files.write_tensors(weights, tensors)
    _write(folder, round, weights, meta, stack)
    tidy(folder, round)


def rounds(folder: Path) -> list[int]:
    """Rounds that have a checkpoint, newest first; UserError if the folder cannot be read."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(
            f"cannot read {folder}: {error.strerror}; nothing was changed: make it readable, then "
            "resume again"
        ) from None
    found = [match for name in names if (match := _NAME.fullmatch(name))]
    return sorted((int(m["round"] or NOTHING_YET) for m in found), reverse=True)


def read(folder: Path, number: int) -> Checkpoint:
    """The checkpoint of a round, its files checked against their checksums."""
    found = about(folder, number)
    with _reading():
        if found.weights is not None and _sha256(found.weights) != found.sha256:
            raise Damaged(f"{found.weights.name} does not match its SHA-256")
    return found


def about(folder: Path, number: int) -> Checkpoint:
    """What its JSON says; the tensors are not looked at."""
    path = folder / f"{_stem(number)}.json"
    try:
        with _reading():
            body = json.loads(path.read_bytes())
        if body.pop("check", None) != _digest(body):
            raise Damaged(f"{path.name} does not match its own checksum")
        weights = None if body["file"] is None else path.with_suffix(".safetensors")
        stack = tuple(body.get("stack", ()))
        return Checkpoint(body["round"], body["meta"], stack, weights, body["sha256"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path.name}: {' '.join(str(error).split())}") from None


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise Damaged(f"{Path(error.filename).name} is missing") from None
    except OSError as error:  # it may be whole: nothing may be decided without it
        raise UserError(
            f"cannot read {error.filename}: {error.strerror}; nothing was changed: make it "
            "readable, then resume again"
        ) from None


def tidy(folder: Path, until: int) -> None:
    """Keep the last two checkpoints up to round `until`."""
    found = rounds(folder)
    kept = [number for number in found if number <= until][:KEPT]
    for other in set(found) - set(kept):
        _remove(folder, other)
    names = {f"{_stem(number)}.safetensors" for number in kept}
    for stray in folder.glob("round_*.safetensors"):
        if stray.name not in names:
            with suppress(OSError):
                stray.unlink(missing_ok=True)


def discard(folder: Path) -> None:
    """Delete all checkpoints of a finished run, and the folder unless others have files in it."""
    if files.kind(folder) != "a folder":
        return
    tidy(folder, NOTHING_YET - 1)
    files.remove_drafts(folder, *FILES)
    with suppress(OSError):
        folder.rmdir()


def _remove(folder: Path, number: int) -> None:
    # The JSON goes first: without it the tensors do not count as a checkpoint.
    for suffix in (".json", ".safetensors"):
        with suppress(OSError):
            (folder / f"{_stem(number)}{suffix}").unlink(missing_ok=True)


def _stem(number: int) -> str:
    return "begun" if number == NOTHING_YET else f"round_{number:06d}"


def _write(
    folder: Path, round: int, weights: Path | None, meta: Mapping[str, Any], stack: Sequence[str]
) -> None:
    body = {
        "round": round,
        "file": weights.name if weights else None,
        "sha256": _sha256(weights) if weights else None,
        "stack": list(stack),
        "meta": dict(meta),
    }
    files.write_json(folder / f"{_stem(round)}.json", {**body, "check": _digest(body)})


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
