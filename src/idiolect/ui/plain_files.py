"""Files below the runs directory, opened so that nothing else can be meant by them.

A run may be somebody else's: a link in it could lead to any file of this machine, and opening a
pipe or a device may never end.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from idiolect.errors import UserError

LARGEST_SMALL_FILE = 4 << 20  # bytes of a config.yaml, summary.json or split.json


def opened(path: Path) -> BinaryIO:
    """A plain file, open to read; OSError for a link, a pipe, a device or a folder."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path.name} is no plain file")
    return os.fdopen(handle, "rb")


def check_run(folder: Path) -> None:
    """UserError where something in a run's folder is neither a plain file nor a folder."""
    for place in (folder, folder / "flower"):
        if place.is_symlink():
            raise UserError(f"{place.name} is a link; links are not followed")
        if not place.is_dir():
            continue
        with os.scandir(place) as found:
            for child in found:
                kind = child.stat(follow_symlinks=False)
                if not (stat.S_ISREG(kind.st_mode) or stat.S_ISDIR(kind.st_mode)):
                    what = "a link" if stat.S_ISLNK(kind.st_mode) else "no plain file"
                    raise UserError(f"{child.name} is {what}; it is not read")
                small = child.name in ("config.yaml", "summary.json", "env.json", "split.json")
                if small and kind.st_size > LARGEST_SMALL_FILE:
                    raise UserError(f"{child.name} has {kind.st_size} bytes; it is not read")
