"""The `idiolect` program, also as `python -m idiolect`: Ctrl-C can stop it from its first line."""

import os
import signal
from typing import Any

LOOKS = "10000"  # at a lock before a thread sleeps: some ten microseconds


def main() -> None:
    """Entry point of the program. Its imports take a moment, in which Ctrl-C is one line too."""
    signal.signal(signal.SIGINT, _stopped)
    threads_sleep_soon()
    from idiolect.cli.app import main as program

    program()


def threads_sleep_soon() -> None:
    """PyTorch's threads wait for one another by looking, 300,000 times before they sleep; where the
    cores have other work too, they keep from it the very thread that they wait for. Read when
    PyTorch is imported, here and in processes that this one starts."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", LOOKS)


def _stopped(number: int, frame: Any) -> None:
    # Nothing is written yet; an exception would get lost in a library that is half imported.
    os.write(2, b"stopped\n")
    os._exit(130)


if __name__ == "__main__":
    main()
