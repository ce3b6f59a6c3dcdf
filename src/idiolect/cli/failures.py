"""The one place where a failure becomes a line and an exit code (docs/cli.md lists the codes).

Whatever was not expected ends here too: its traceback goes to a file, one line says which.
"""

import errno
import os
import platform
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TextIO

import click

from idiolect.core import own_code
from idiolect.core.text import one_line, reason, shortened
from idiolect.errors import DiskError, UserError

MACHINE, MISTAKE, FAULT, STOPPED = 1, 2, 70, 130  # exit codes
GPU_MEMORY_FULL = (
    "the GPU's memory is full (what is finished is kept); end other programs on it, "
    "lower method.batch_size or --participation, or take a smaller model"
)
MEMORY_FULL = (
    "the memory is full (what is finished is kept); end other programs, take a smaller model, "
    "fewer clients or --keep disk"
)
LONGEST_LINE = 2000  # characters; a name that was given may have any number
NO_MEMORY = ("can't allocate memory", "std::bad_alloc", "Cannot allocate memory", "malloc of size")


def exit_code(work: Callable[[], Any]) -> int:
    """Do the work of a command; the program's exit code. A failure is one line on stderr."""
    _open_streams()
    own_code.begin()
    with _interruptible() as stopped, warnings.catch_warnings():
        warnings.showwarning = _shown_once()
        try:
            code = work()
            sys.stdout.flush()
            return code if isinstance(code, int) else 0
        except BaseException as error:
            line, code = (("stopped", STOPPED)) if stopped.is_set() else _told(error)
            _say(line)
            return code
        finally:
            _quiet_at_exit()


def _told(error: BaseException) -> tuple[str, int]:
    """The line for an error, and its exit code."""
    if isinstance(error, SystemExit) and (found := own_code.fault(error)):
        return _own_failed(error, *found), MISTAKE
    if isinstance(error, SystemExit | click.exceptions.Exit):
        code = error.code if isinstance(error, SystemExit) else error.exit_code
        return "", code if isinstance(code, int) else MISTAKE if code else 0
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return "stopped", STOPPED
    if isinstance(error, click.ClickException):
        return _usage(error), MISTAKE
    if isinstance(error, UserError):
        return f"error: {error}", MACHINE if isinstance(error, DiskError) else MISTAKE
    by_name = {"Interrupted": (str(error), STOPPED)}  # their modules may not be imported yet
    by_name["OutOfMemoryError"] = (f"error: {GPU_MEMORY_FULL}", MACHINE)
    if type(error).__name__ in by_name:
        return by_name[type(error).__name__]
    if isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY):
        return f"error: {MEMORY_FULL}", MACHINE
    if isinstance(error, BrokenPipeError):
        return "error: the output was closed before all of it was written", MACHINE
    if isinstance(error, OSError) and error.strerror:
        told = f"error: {error.filename or 'the output'}: {error.strerror}"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE)
        return told, MACHINE if full or error.filename is None else MISTAKE
    if found := own_code.fault(error):
        return _own_failed(error, *found), MISTAKE
    if own_code.in_use():
        return _doubtful(error), MISTAKE
    return _crashed(error), FAULT


def _own_failed(error: BaseException, whose: str, where: str) -> str:
    path = _kept(_report(error))
    place = f"; the traceback is in {path}" if path else ""
    return f"error: {whose} failed at {where}: {type(error).__name__}: {reason(error)}{place}"


def _doubtful(error: BaseException) -> str:
    """It failed outside of the user's own code, perhaps because of what that returned."""
    path = _kept(_report(error))
    place = f"; what happened is in {path}" if path else ""
    return (
        f"error: it failed with {type(error).__name__}: {reason(error)}, perhaps by what your own"
        f" code returned; `idiolect check FILE.py:CLASS` tests a method{place}"
    )


def _usage(error: click.ClickException) -> str:
    """A command line that cannot be read."""
    message = error.format_message().strip().rstrip(".")
    context = getattr(error, "ctx", None)
    if not message:  # the help page was printed instead
        return ""
    help_page = f"; see `{context.command_path} --help`" if context else ""
    return f"error: {message[0].lower()}{message[1:]}{help_page}"


def _crashed(error: BaseException) -> str:
    """Put the traceback into a file of its own; the line that says where it is."""
    what = f"{type(error).__name__}: {reason(error)}"
    path = _kept(_report(error))
    place = f"; what happened is in {path}: please report it" if path else ""
    return f"error: this is a fault of the program ({what}){place}"


def _report(error: BaseException) -> str:
    return "\n".join(
        [
            f"command: {' '.join(map(one_line, sys.argv))}",
            f"python {platform.python_version()} on {platform.platform()}",
            "",
            "".join(traceback.format_exception(error)),
        ]
    )


def _kept(report: str) -> Path | None:
    """A new file in the user's cache folder, or where that cannot be written, a temporary one."""
    from idiolect.data.places import cache_dir

    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    for find in (lambda: cache_dir() / "crashes", lambda: Path(tempfile.gettempdir())):
        with suppress(OSError, RuntimeError):  # RuntimeError: there is no home folder
            folder = find()
            folder.mkdir(parents=True, exist_ok=True)
            for number in count(1):
                path = folder / f"idiolect-crash-{name}-{number}.txt"
                with suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
                    file.write(report.encode("utf-8", "backslashreplace").decode("utf-8"))
                    return path
    return None


def _say(line: str) -> None:
    if line:
        with suppress(OSError, ValueError):
            print(shortened(line, LONGEST_LINE), file=sys.stderr, flush=True)


def _shown_once() -> Callable[..., None]:
    said: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in said:  # runs of a comparison share most of their settings
            said.add(str(message))
            _say(f"warning: {message}")

    return show


def _open_streams() -> None:
    """Streams that were closed lead nowhere; what their encoding lacks is written as `\\u2013`."""
    for name in ("stdout", "stderr"):
        stream: TextIO | None = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _quiet_at_exit() -> None:
    """Drop what is left for a closed pipe or a full disk: Python would complain at its end."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Ctrl-C ends the work with a KeyboardInterrupt, and the event tells it from other errors:
    libraries turn an interruption into errors of their own. In the middle of an import, where some
    drop it, the program ends at once."""
    asked = threading.Event()

    def stop(number: int, frame: Any) -> None:
        asked.set()
        while frame is not None:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                os.write(2, b"stopped\n")
                os._exit(STOPPED)
            frame = frame.f_back
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
