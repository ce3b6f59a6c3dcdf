"""A run's directory: what is in it, who may write to it, and how it is read back."""

import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal

from idiolect.core import files
from idiolect.core.text import shortened
from idiolect.errors import DiskError, UserError
from idiolect.runs.checkpoint import NOTHING_YET, rounds
from idiolect.runs.config import Config, digest, read_yaml
from idiolect.runs.run_files import check_files

FILES = ("config.yaml", "env.json", "split.json", "events.jsonl", "clients.parquet",
         "matrices.safetensors", "checkpoint", "models", "summary.json")  # fmt: skip
FOLDERS = ("checkpoint", "models")
LOG = "log"  # folder of what rounds are shown in besides
PARTS = ("clients.part-*.parquet", "matrices.part-*.safetensors")
DISK_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)

State = Literal["new", "unfinished", "finished"]


def state(out: Path, config: Config | None) -> State:
    """How far the run in `out` is; UserError where it holds something other than this run."""
    if not out.exists():
        return "new"
    if not out.is_dir():
        raise UserError(f"{out} is a file; choose another --out")
    _check_kinds(out)
    if not (out / "config.yaml").exists():
        alien = [name for name in FILES if (out / name).exists()]
        if alien and not is_not_begun(out):
            raise UserError(f"{out} holds {alien[-1]} but no config.yaml; choose another --out")
        return "new"
    if config is not None and digest(read_config(out)) != digest(config):
        raise UserError(f"{out} holds another run (its config.yaml differs); choose another --out")
    return "finished" if (out / "summary.json").exists() else "unfinished"


def is_not_begun(out: Path) -> bool:
    """Whether a run was stopped while its folder was made: it has what is written before
    config.yaml, and nothing that a round left."""
    later = [name for name in FILES if name not in ("env.json", "split.json", "checkpoint")]
    if any((out / name).exists() for name in later) or rounds(out / "checkpoint") > [NOTHING_YET]:
        return False
    try:
        return "idiolect" in json.loads((out / "env.json").read_bytes())["packages"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _check_kinds(out: Path) -> None:
    """A run writes and deletes only files and folders of its own: never through a link."""
    for name in (*FILES, ".lock"):
        wanted = "a folder" if name in FOLDERS else "a file"
        if (found := files.kind(out / name)) not in (None, wanted):
            raise UserError(
                f"{out / name} is {found}, not {wanted} of the run; nothing was changed: move it "
                "away or choose another --out"
            )


def put_aside(out: Path) -> Path:
    """Move everything a run recorded into a folder of its own; config.yaml stays."""
    names = [*(name for name in FILES if name != "config.yaml"), LOG]
    parts = [path.name for pattern in PARTS for path in out.glob(pattern)]
    numbers = (out / f"earlier-{number}" for number in count(1))
    aside = next(path for path in numbers if files.kind(path) is None)
    aside.mkdir()
    # A kill in between leaves no run that counts: what says "finished" goes first, what says who
    # made the rest near the end, the checkpoints last, as rounds that have none are refused.
    order = {"summary.json": -1, "env.json": 1, "checkpoint": 2}
    for name in sorted([*names, *parts], key=lambda name: order.get(name, 0)):
        if files.kind(out / name) is not None:
            os.rename(out / name, aside / name)
    files.sync_folder(aside)
    files.sync_folder(out)
    return aside


def read_config(out: Path) -> Config:
    for folder in (out, out / "checkpoint"):
        check_files(folder)
    if not (out / "config.yaml").is_file():
        if out.is_dir() and is_not_begun(out):
            raise UserError(
                f"{out} was not begun: it was stopped before its first round; give the command "
                "that started it again"
            )
        runs = sorted(one.parent.name for one in out.glob("*/config.yaml"))
        told = f"it holds runs, name one: {shortened(', '.join(runs), 200)}" if runs else ""
        raise UserError(f"{out} is not a run: {told or 'it has no config.yaml'}")
    return read_yaml(out / "config.yaml")


def read_events(out: Path) -> list[dict[str, Any]]:
    """The rounds so far; a line cut short by a kill does not count, nor does what follows it."""
    events: list[dict[str, Any]] = []
    try:
        lines = (out / "events.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return events
    except OSError as error:
        raise UserError(f"cannot read {out / 'events.jsonl'}: {error.strerror}") from None
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(event, dict) or not isinstance(event.get("round"), int):
            break
        events.append(event)
    return events


def read_summary(out: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((out / "summary.json").read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"cannot read {out / 'summary.json'}: {error.strerror}") from None
    except (ValueError, TypeError, RecursionError):
        raise UserError(
            f"{out / 'summary.json'} is damaged; delete it and resume the run to write it again"
        ) from None


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
def disk_errors(place: Path, then: Callable[[], str]) -> Iterator[None]:
    """A full or failing disk is one line that says what goes on `then`."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FAILURES:
            raise
        raise DiskError(
            f"cannot write to {place}: {os.strerror(error.errno)}; free some space, then {then()}"
        ) from None


def how_runs_go_on(outs: Sequence[Path]) -> str:
    """The last checkpoint is never touched by a full disk."""
    begun = len(outs) == 1 and (outs[0] / "config.yaml").exists()
    how = f"`idiolect resume {outs[0]}`" if begun else "the same command"
    return f"{how} continues from the last checkpoint"
