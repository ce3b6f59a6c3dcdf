"""One live line on a terminal, a few plain lines elsewhere; always on stderr."""

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from idiolect.core.task import metric_named
from idiolect.runs.progress import Progress


class LiveLine(Progress):
    """Round, mean, p10, worst, s/round, ETA and MB, rewritten in place or printed now and then."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.live: Live | None = None

    def start(self, label: str, done: int, total: int, sent: int = 0) -> None:
        self.label, self.total, self.first = label, total, done
        self.began = time.monotonic()
        self.bytes, self.accuracy = sent, ""
        # Lines for a log file: about ten in all, however many rounds.
        self.step = max(1, -(-total // 10))
        if self.console.is_terminal:
            self.live = Live(
                Text(f"{label}  starting"),
                console=self.console,
                transient=True,
                refresh_per_second=8,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self.live.start()

    def update(self, event: Mapping[str, Any]) -> None:
        line = self._line(event)
        number = event["round"]
        if self.live is not None:
            self.live.update(Text(line, no_wrap=True, overflow="ellipsis"))
        elif number == self.total or (number > 0 and number % self.step == 0):
            super().note(line)

    def note(self, line: str) -> None:
        if self.live is not None:
            self.console.print(Text(line))
        else:
            super().note(line)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _line(self, event: Mapping[str, Any]) -> str:
        number = event["round"]
        self.bytes += event["bytes_up"] + event["bytes_down"]
        accuracy = event["accuracy"]
        if accuracy["mean"] is not None:
            other = event.get("metric", {}).get("name", "accuracy")
            scale, digits = (100, ".1f") if metric_named(other).share else (1, ".4g")
            self.accuracy = "  ".join(
                f"{name} {scale * accuracy[name]:{digits}}" for name in ("mean", "p10", "worst")
            )
        pace = (time.monotonic() - self.began) / max(1, number - self.first)
        left = duration(pace * (self.total - number))
        width = len(str(self.total))
        return (
            f"{self.label}  round {number:>{width}}/{self.total}  {self.accuracy}  "
            f"{pace:.3g} s/round  ETA {left}  {self.bytes / 1e6:.1f} MB"
        )


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
