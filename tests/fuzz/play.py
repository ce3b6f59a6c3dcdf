"""Plays a case in a folder of its own and says how it ended."""

import importlib
import io
import os
import re
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from idiolect.cli.app import app
from idiolect.cli.failures import FAULT
from idiolect.deploy.client_data import load_data
from idiolect.errors import UserError
from idiolect.runs import build
from tests.fuzz import federations
from tests.fuzz.cases import Case
from tests.fuzz.places import sound

# Before the cases: where the time of one ends an import, all that come later meet half a module.
for slow in ("scipy.cluster.hierarchy", "scipy.stats", "sklearn.datasets", "sklearn.metrics"):
    importlib.import_module(slow)

LIMIT = float(os.environ.get("IDIOLECT_FUZZ_LIMIT", "10"))  # seconds; longer is a hang
COMMANDS = typer.main.get_command(app)
RAW = re.compile(
    r"object has no attribute|not supported between|NoneType|<class '|unexpected keyword|"
    r"positional argument|list index|tuple\[|dict\[|unhashable|not iterable|not subscriptable|"
    r"known: *$|known: *;|\bnumpy\.|datetime\.date"
)
FAILURES = ("traceback", "hang", "exit 0 on bad input", "good input refused", "unclear message")


class Hang(BaseException):
    """The time is over. No handler of errors catches it."""


@dataclass(frozen=True)
class Ending:
    how: str  # success, clean error, or one of FAILURES
    detail: str = ""


def play(case: Case) -> Ending:
    """How the case ends."""
    with _folder(case) as folder:
        begun = time.monotonic()
        try:
            with _limited():
                code, err = PLACES[case.kind](case, folder)
        except Hang:
            return Ending("hang", "no answer in time")
        except Exception:
            return Ending("traceback", traceback.format_exc()[-2000:])
        if time.monotonic() - begun > LIMIT:
            return Ending("hang", f"{time.monotonic() - begun:.1f} s")
        # A fault of the program; what goes wrong in a user's own code is kept there too.
        for crash in (folder / "cache/crashes").glob("*") if code == FAULT else ():
            err += crash.read_text()
    return _judged(case, code, err)


def _judged(case: Case, code: int, err: str) -> Ending:
    lines = [line for line in err.splitlines() if not line.startswith("warning: ")]
    if code not in (0, 1, 2) or "Traceback" in err:
        return Ending("traceback", f"exit {code}: {err[-1500:]}")
    if code == 0:
        return Ending("exit 0 on bad input", err[-300:]) if case.bad else Ending("success")
    if case.bad is False:
        return Ending("good input refused", err[-600:])
    errors = [line for line in lines if line.startswith("error: ")]
    if not lines and code == 2 and len(case.words) < 3:
        return Ending("clean error", "the help page")
    own = any(name.endswith(".py") for name in case.files)  # its author reads Python's words
    raw = not own and errors and RAW.search(errors[0])
    if len(errors) != 1 or not lines[-1].startswith("error: ") or raw:
        return Ending("unclear message", err[-600:])
    if re.search("[\x00-\x08\x0b-\x1f\x7f]", err) or len(errors[0]) > 4000:
        return Ending("unclear message", repr(err[-600:]))
    return Ending("clean error", errors[0][:300])


def command(words: tuple[str, ...]) -> tuple[int, str]:
    """The command line in this process: exit code and stderr."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    try:
        with redirect_stdout(out), redirect_stderr(err):
            COMMANDS.main(list(words), prog_name="idiolect")
    except SystemExit as end:
        code = end.code
    return int(code or 0), err.getvalue()


def _called(call: Callable[[], Any]) -> tuple[int, str]:
    """The library, with the command line's codes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
        except UserError as error:
            return 2, f"error: {error}\n"
    return 0, ""


def _data(case: Case, folder: Path) -> tuple[int, str]:
    return command(case.words)


def _client(case: Case, folder: Path) -> tuple[int, str]:
    return _called(lambda: load_data(str(folder / case.words[0]), case.spec))


def _federation(case: Case, folder: Path) -> tuple[int, str]:
    return _called(lambda: federations.run(case.spec))


def _own(case: Case, folder: Path) -> tuple[int, str]:
    """A command on the user's own data, which changes nothing of what is there."""
    (folder / "kept").mkdir()
    (folder / "kept/notes.txt").write_text("mine")
    before = _contents(folder)
    ending = command(case.words)
    after = _contents(folder)
    lost = [name for name, content in before.items() if after.get(name) != content]
    return (3, f"Traceback: overwritten {lost}") if lost else ending


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(f): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


PLACES: dict[str, Callable[[Case, Path], tuple[int, str]]] = {
    "command": lambda case, _: command(case.words),
    "run": lambda case, _: command(case.words),
    "data": _data,
    "client": _client,
    "federation": _federation,
    "own": _own,
}
COPIED = {"command": ("init",), "run": ("run", "unfinished"), "data": ("data",)}
COPIED |= {"client": ("client",), "federation": (), "own": ("own",)}


@contextmanager
def _folder(case: Case) -> Iterator[Path]:
    """A copy of what the case spoils, spoiled; everything the program writes stays in it."""
    base, before, environment = sound(), Path.cwd(), dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="idiolect-case-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        for name in COPIED[case.kind]:
            shutil.copytree(base / name, folder / name)
        for name, content in case.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError, IsADirectoryError):
                path.unlink()
            if isinstance(content, str) and content.startswith("link:"):
                path.symlink_to(content.removeprefix("link:"))
            elif content == "pipe:":
                os.mkfifo(path)
            elif content == "folder:":
                path.mkdir()
            elif content is not None:
                path.write_bytes(content.encode() if isinstance(content, str) else content)
        os.chdir(folder)
        os.environ |= {
            "IDIOLECT_DATA": str(folder / "data"),
            "IDIOLECT_CACHE": str(folder / "cache"),
        }
        build._federation.cache_clear()
        try:
            yield folder
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ.update(environment)


@contextmanager
def _limited() -> Iterator[None]:
    def over(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
