"""Who is told how a run goes."""

import sys
from collections.abc import Mapping
from typing import Any, Protocol


class Progress(Protocol):
    """Shows the rounds of a run; the command line has one for terminals and log files."""

    def start(self, label: str, done: int, total: int, sent: int = 0) -> None: ...
    def update(self, event: Mapping[str, Any]) -> None: ...
    def note(self, line: str) -> None: ...
    def close(self) -> None: ...


class WarningsOnly:
    """Shows no rounds; warnings go to stderr."""

    def start(self, label: str, done: int, total: int, sent: int = 0) -> None: ...
    def update(self, event: Mapping[str, Any]) -> None: ...
    def note(self, line: str) -> None:
        print(line, file=sys.stderr)

    def close(self) -> None: ...
