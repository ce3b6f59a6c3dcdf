"""The one line of `idiolect recipe`: rewritten in place on a terminal, now and then elsewhere."""

import sys
import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from idiolect.papers.runner import RecipeProgress

EVERY = 30.0  # seconds between lines in a log file


class RecipeLine(RecipeProgress):
    """Cells done, ETA, what is running."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.live: Live | None = None
        self.last = time.monotonic()

    def show(self, line: str) -> None:
        if not self.console.is_terminal:
            if time.monotonic() - self.last >= EVERY:
                self.note(line)
                self.last = time.monotonic()
            return
        text = Text(line, no_wrap=True, overflow="ellipsis")
        if self.live is None:
            self.live = Live(
                text, console=self.console, transient=True, refresh_per_second=4,
                redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self.live.start()
        self.live.update(text)

    def note(self, line: str) -> None:
        if self.live is not None:
            self.console.print(Text(line))
        else:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None
