"""Ctrl-C, SIGTERM and a file in the run's folder: a run ends after its round, with everything
saved."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from idiolect.engine.ranks import Ranks

STOP_FILE = ".stop"  # a process that may not send signals asks with it, such as the live page


class Interrupted(Exception):
    """Stopped on request, with everything saved; the message says how to go on."""


@contextmanager
def stop_requests(when: str = "after this round") -> Iterator[threading.Event]:
    """First Ctrl-C or SIGTERM: the event is set, to end after what is under way. Second: end
    now."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        if Ranks.current().first:  # not print: the signal may have come in the middle of one
            os.write(2, f"\nstopping {when}; Ctrl-C again stops at once\n".encode())

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ask_to_stop(out: Path) -> None:
    """Ask the process that writes this run to end after its round."""
    with suppress(FileExistsError):
        os.close(os.open(out / STOP_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def is_asked_to_stop(out: Path) -> bool:
    return os.path.lexists(out / STOP_FILE)


def forget_stop(out: Path) -> None:
    """Take the request back: it was met, or it was left for a run that ended before."""
    with suppress(OSError):
        os.unlink(out / STOP_FILE)
