"""What surrounds a run: a writable place, one writer, full disks and requests to stop."""

import errno
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from idiolect.engine.ranks import Ranks
from idiolect.errors import UserError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)


class Interrupted(Exception):
    """Stopped on request, with everything saved; the message says how to go on."""


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
        if error.errno not in NO_SPACE:
            raise
        raise UserError(
            f"cannot write to {out}: {os.strerror(error.errno)}; free some space, then "
            f"`idiolect resume {out}` continues from the last checkpoint"
        ) from None


class Stop:
    """Whether somebody asked the run to end after this round."""

    asked = False


@contextmanager
def stop_requests() -> Iterator[Stop]:
    """First Ctrl-C or SIGTERM: end after this round. Second: end now."""
    stop = Stop()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True
        if Ranks.current().first:  # not print: the signal may have come in the middle of one
            os.write(2, b"\nstopping after this round; Ctrl-C again stops at once\n")

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
