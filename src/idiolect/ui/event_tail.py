"""The end of a file of JSON lines that another process is writing."""

import json
import os
from pathlib import Path
from typing import Any

from idiolect.ui.plain_files import opened

LONGEST_LINE = 1 << 20  # bytes; a longer one is no line of ours
LARGEST_READ = 1 << 24  # bytes read at once; the rest is read the next time


class EventTail:
    """Reads each line once: a call reads only what was written since the last one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.bytes_read = 0  # in all, so that a test can see that nothing is read twice
        self.changed = 0.0  # when it was last written
        self._identity: tuple[int, int] | None = None
        self._broken = False

    def fresh(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether the file began anew (a resumed run cuts it), and the whole lines since then."""
        try:
            with opened(self.path) as file:
                about = os.fstat(file.fileno())
                self.changed = about.st_mtime
                identity = (about.st_dev, about.st_ino)
                anew = identity != self._identity or about.st_size < self.offset
                if anew:
                    self.offset, self._identity, self._broken = 0, identity, False
                file.seek(self.offset)
                block = file.read(LARGEST_READ)
        except OSError:
            return False, []
        self.bytes_read += len(block)
        end = block.rfind(b"\n") + 1
        if end == 0:
            self._broken = self._broken or len(block) > LONGEST_LINE
            return anew, []
        self.offset += end
        return anew, self._parsed(block[:end])

    def _parsed(self, block: bytes) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for line in block.splitlines():
            if self._broken:  # what follows a damaged line is not the run's record
                break
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                self._broken = True
                break
            if isinstance(value, dict):
                found.append(value)
        return found
