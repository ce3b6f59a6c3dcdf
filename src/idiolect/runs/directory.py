"""A run's directory: what is in it, who may write to it, and how it is read back."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from idiolect.errors import UserError
from idiolect.runs.config import Config, digest, read_yaml

FILES = ("config.yaml", "env.json", "events.jsonl", "clients.parquet", "matrices.safetensors",
         "checkpoint", "models", "summary.json")  # fmt: skip
DISK_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)

State = Literal["new", "unfinished", "finished"]


def state(out: Path, config: Config | None) -> State:
    """How far the run in `out` is; UserError where it holds something other than this run."""
    if not out.exists():
        return "new"
    if not out.is_dir():
        raise UserError(f"{out} is a file; choose another --out")
    if not (out / "config.yaml").exists():
        alien = [name for name in FILES if (out / name).exists()]
        if alien:
            raise UserError(f"{out} holds {alien[0]} but no config.yaml; choose another --out")
        return "new"
    if config is not None and digest(read_config(out)) != digest(config):
        raise UserError(f"{out} holds another run (its config.yaml differs); choose another --out")
    return "finished" if (out / "summary.json").exists() else "unfinished"


def read_config(out: Path) -> Config:
    if not (out / "config.yaml").is_file():
        raise UserError(f"{out} is not a run: it has no config.yaml")
    return read_yaml(out / "config.yaml")


def read_events(out: Path) -> list[dict[str, Any]]:
    """The rounds so far; a line cut short by a kill does not count."""
    events = []
    with suppress(FileNotFoundError):
        for line in (out / "events.jsonl").read_text(encoding="utf-8").splitlines():
            try:
                events.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return events


def read_summary(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "summary.json").read_text(encoding="utf-8")))


def check_writable(out: Path) -> None:
    """Say so before the work rather than after it."""
    place = out
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {out}: {place} is not a writable directory")


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """One process per run. The system drops the lock when a process dies, however it dies."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = (out / ".lock").open("a", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}") from None
    with file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no advisory locks on this system
            pass
        except OSError as error:
            # Any other errno: a file system without locks.
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise UserError(f"another process is writing {out}; wait for it to end") from None
        yield


@contextmanager
def disk_errors(out: Path) -> Iterator[None]:
    """A full or failing disk is one line; the last checkpoint is never touched by it."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FAILURES:
            raise
        raise UserError(
            f"cannot write to {out}: {os.strerror(error.errno)}; free some space, then "
            f"`idiolect resume {out}` continues from the last checkpoint"
        ) from None
