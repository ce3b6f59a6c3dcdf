"""Checkpoints: `round_000010.safetensors` and a JSON file that vouches for it by SHA-256.

The JSON is written last, so a checkpoint without one never existed. The last two are kept: whatever
happens to the newest, the one before is still there.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from idiolect.core import files
from idiolect.errors import UserError

KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    round: int
    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def save(folder: Path, round: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write the checkpoint of one round and drop all but the last two."""
    folder.mkdir(exist_ok=True)
    weights = folder / f"round_{round:06d}.safetensors"
    files.write_tensors(weights, tensors)
    body = {"round": round, "file": weights.name, "sha256": _sha256(weights), "meta": dict(meta)}
    files.write_json(weights.with_suffix(".json"), {**body, "check": _digest(body)})
    for old in rounds(folder)[KEPT:]:
        remove(folder, old)
    known = set(rounds(folder))
    for stray in folder.glob("round_*.safetensors"):
        if _number(stray) not in known:
            stray.unlink(missing_ok=True)


def rounds(folder: Path) -> list[int]:
    """Rounds that have a checkpoint, newest first."""
    found = (_number(path) for path in folder.glob("round_*.json"))
    return sorted((number for number in found if number is not None), reverse=True)


def load(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest sound checkpoint; None where there never was one. Bad ones are reported."""
    tried = rounds(folder)
    for number in tried:
        try:
            return _read(folder / f"round_{number:06d}.json")
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split())
            warn(f"checkpoint of round {number} is damaged ({reason}); trying the one before")
    if tried:
        raise UserError(
            f"no usable checkpoint in {folder}: all {len(tried)} are damaged; start again with "
            "`idiolect run` and another --out"
        )
    return None


def remove(folder: Path, number: int) -> None:
    # The JSON goes first: without it the tensors do not count as a checkpoint.
    for suffix in (".json", ".safetensors"):
        with suppress(OSError):
            (folder / f"round_{number:06d}{suffix}").unlink(missing_ok=True)


def _read(path: Path) -> Checkpoint:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    body = json.loads(path.read_text(encoding="utf-8"))
    if body.pop("check", None) != _digest(body):
        raise ValueError(f"{path.name} does not match its own checksum")
    weights = path.with_name(body["file"])
    if not weights.exists():
        raise ValueError(f"{weights.name} is missing")
    if _sha256(weights) != body["sha256"]:
        raise ValueError(f"{weights.name} does not match its SHA-256")
    try:
        return Checkpoint(body["round"], load_file(weights), body["meta"])
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def _number(path: Path) -> int | None:
    digits = path.stem.removeprefix("round_")
    return int(digits) if digits.isdigit() else None


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
