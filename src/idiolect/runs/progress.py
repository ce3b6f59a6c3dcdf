"""Who is told how a run goes."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any


class Progress:
    """Shows no rounds, and warnings on stderr; `LiveLine` is one that shows rounds too."""

    def start(
        self, label: str, done: int, total: int, sent: int = 0, members: Sequence[str] = ()
    ) -> None:
        """Rounds begin: of one run, or of the `members` of a stack."""

    def update(self, event: Mapping[str, Any], member: int = 0) -> None:
        """A round is done: of the only run, or of that member of the stack."""

    def note(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None: ...
