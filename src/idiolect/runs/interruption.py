"""Ctrl-C and SIGTERM: a run ends after its round, with everything saved."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from idiolect.engine.ranks import Ranks


class Interrupted(Exception):
    """Stopped on request, with everything saved; the message says how to go on."""


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
