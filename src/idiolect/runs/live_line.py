"""How runs go: a live line on a terminal, a table above it for runs of one stack, a few plain lines
elsewhere; always on stderr."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from idiolect.core.task import metric_named
from idiolect.runs.progress import Progress

SHOWN = ("mean", "p10", "worst")
OTHER_LINES = 5  # of a window, besides the runs of a stack


class LiveLine(Progress):
    """Round, mean, p10, worst, s/round, ETA and MB, rewritten in place or printed now and then."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.live: Live | None = None

    def start(
        self, label: str, done: int, total: int, sent: int = 0, members: Sequence[str] = ()
    ) -> None:
        self.label, self.total, self.first = label, total, done
        self.members = list(members) or [label]
        self.began = time.monotonic()
        self.bytes = sent
        self.name = "accuracy"  # of the metric
        self.stats: dict[int, Mapping[str, float]] = {}  # of every run, as last tested
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

    def update(self, event: Mapping[str, Any], member: int = 0) -> None:
        self.bytes += event["bytes_up"] + event["bytes_down"]
        if event["accuracy"]["mean"] is not None:
            self.stats[member] = event["accuracy"]
            self.name = event.get("metric", {}).get("name", "accuracy")
        number = event["round"]
        if member < len(self.members) - 1:  # the runs of a stack end their rounds together
            return
        if self.live is not None:
            self.live.update(self._view(number))
        elif number == self.total or (number > 0 and number % self.step == 0):
            super().note(self._line(number))

    def note(self, line: str) -> None:
        if self.live is not None:
            self.console.print(Text(line))
        else:
            super().note(line)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _view(self, number: int) -> RenderableType:
        alone = len(self.members) == 1
        line = Text(self._line(number, alone), no_wrap=True, overflow="ellipsis")
        if alone:
            return line
        table = Table(box=None, pad_edge=False, header_style="")
        table.add_column(f"{self.name}{' %' if self._metric.share else ''}", no_wrap=True)
        for name in SHOWN:
            table.add_column(name, justify="right")
        room = max(1, self.console.height - OTHER_LINES)
        for member, name in list(enumerate(self.members))[:room]:
            known = self.stats.get(member)
            cells = [self._number(known[key]) if known else "–" for key in SHOWN]
            table.add_row(Text(name, overflow="ellipsis"), *cells)
        if (more := len(self.members) - room) > 0:
            table.add_row(f"and {more} more")
        if self.stats:
            table.add_row("all", *(self._number(value) for value in self._overall().values()))
        return Group(table, line)

    def _line(self, number: int, scores: bool = True) -> str:
        pace = (time.monotonic() - self.began) / max(1, number - self.first)
        left = duration(pace * (self.total - number))
        width = len(str(self.total))
        told = f"{self._scores()}  " if scores else ""
        return (
            f"{self.label}  round {number:>{width}}/{self.total}  {told}"
            f"{pace:.3g} s/round  ETA {left}  {self.bytes / 1e6:.1f} MB"
        )

    def _scores(self) -> str:
        if not self.stats:
            return ""
        name = "" if self.name == "accuracy" else f"{self.name} "
        told = (f"{key} {self._number(value)}" for key, value in self._overall().items())
        return name + "  ".join(told)

    def _overall(self) -> dict[str, float]:
        """Means over the runs of a stack, and the worst client of all."""
        columns = {key: [one[key] for one in self.stats.values()] for key in SHOWN}
        told = {key: sum(values) / len(values) for key, values in columns.items()}
        return told | {"worst": (max if self._metric.lower else min)(columns["worst"])}

    @property
    def _metric(self) -> Any:
        return metric_named(self.name)

    def _number(self, value: float) -> str:
        return f"{100 * value:.1f}" if self._metric.share else f"{value:.4g}"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
