"""The `idiolect` program, also as `python -m idiolect`: Ctrl-C can stop it from its first line."""

import os
import signal
from typing import Any


def main() -> None:
    """Entry point of the program. Its imports take a moment, in which Ctrl-C is one line too."""
    signal.signal(signal.SIGINT, _stopped)
    from idiolect.cli.app import main as program

    program()


def _stopped(number: int, frame: Any) -> None:
    # Nothing is written yet; an exception would get lost in a library that is half imported.
    os.write(2, b"stopped\n")
    os._exit(130)


if __name__ == "__main__":
    main()
