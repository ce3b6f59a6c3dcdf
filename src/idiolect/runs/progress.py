"""Who is told how a run goes."""

import sys
from collections.abc import Mapping
from typing import Any


class Progress:
    """Shows no rounds, and warnings on stderr; the command line has one that shows rounds too."""

    def start(self, label: str, done: int, total: int, sent: int = 0) -> None: ...
    def update(self, event: Mapping[str, Any]) -> None: ...
    def note(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None: ...
