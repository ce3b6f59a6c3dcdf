"""Text from elsewhere, made harmless before people see it: names in other people's files may hold
terminal escapes, line breaks or characters that reverse the writing."""

import re
from typing import Any

from idiolect.errors import one_line as one_line

CLASS = re.compile(r"<class '(?:\w+\.)*(\w+)'>")  # how Python shows a type
PROGRAM = re.compile(r"^(\S*/)?(__main__\.py|idiolect)(?=\s|$)")
FOLDERS = re.compile(r"(?<![^\s=:,'\"])/(?:[^\s/]+/)+(?=[^\s/])")


def shortened(value: Any, most: int = 120) -> str:
    """The same, cut where it is long: for values that are quoted in a message."""
    line = one_line(str(value)[: most + 1])
    return line if len(line) <= most else f"{line[:most]}…"


def reason(error: BaseException) -> str:
    """What an error of a library says, short enough to stand in a message."""
    said = CLASS.sub(r"\1", " ".join(str(error).split()))
    return shortened(said) or type(error).__name__


def without_folders(text: str) -> str:
    """`…/demo` for `/home/somebody/runs/demo`: nobody needs the folders of this machine."""
    return FOLDERS.sub("…/", text)


def command_typed(command: str) -> str:
    """A command line as it is typed elsewhere: `idiolect` whatever started it, no folders."""
    return without_folders(PROGRAM.sub("idiolect", command))
