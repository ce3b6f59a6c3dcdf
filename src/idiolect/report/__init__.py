"""Reports from run directories: tables for terminal, Markdown, CSV and LaTeX, and one HTML page.

From Python, `idiolect.report(["runs/a", "runs/b"], "report.html")` writes one.
"""

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from idiolect.core import files
from idiolect.errors import UserError
from idiolect.report.load import Run, find, load
from idiolect.report.tables import Row, as_csv, latex, markdown, rows
from idiolect.report.terminal_table import terminal

__all__ = [
    "Row",
    "Run",
    "find",
    "html",
    "load",
    "render",
    "rows",
    "terminal",
    "write",
    "write_all",
    "write_report",
]


TABLES: dict[str, Callable[[Sequence[Row]], str]] = {
    "md": markdown,
    "csv": as_csv,
    "latex": latex,
}
FORMATS = (*TABLES, "html")
ENDINGS = {".html": "html", ".htm": "html", ".md": "md", ".csv": "csv", ".tex": "latex"}


def html(found: Sequence[Run], title: str | None = None, target: float | None = None) -> str:
    """The self-contained page."""
    from idiolect.report.page import page

    return page(found, title, target)


def render(
    found: Sequence[Run], form: str, title: str | None = None, target: float | None = None
) -> str:
    """The report as text in one of FORMATS; the page alone has a title."""
    if form == "html":
        return html(found, title, target)
    return TABLES[form](rows(found, target))


def write(
    found: Sequence[Run],
    path: Path,
    form: str,
    title: str | None = None,
    target: float | None = None,
) -> None:
    files.remove_drafts(path.parent, path.name)
    files.write_text(path, render(found, form, title, target))


def write_all(
    found: Sequence[Run], out: Path, note: Callable[[str], None], title: str | None = None
) -> Path | None:
    """compare.csv, compare.md and report.html in `out`; the page's path if it was written."""
    for form in ("csv", "md"):
        write(found, out / f"compare.{form}", form)
    try:
        write(found, out / "report.html", "html", title)
    except UserError as error:
        note(f"report.html was skipped: {error}")
        return None
    return out / "report.html"


def write_report(
    runs: Sequence[Run | str | Path] | Run | str | Path,
    out: str | Path = "report.html",
    target: float | None = None,
) -> Path:
    """Write the report of runs, or of folders of runs: a page, or what the ending of `out` says
    (.html, .md, .csv, .tex). `target`: a score (0.85); the table says when it was reached."""
    given = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    found: list[Run] = []
    for one in given:
        found += [one] if isinstance(one, Run) else find([Path(one)])
    if not found:
        raise UserError("a report needs runs: give their folders")
    path = Path(out)
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"{path}: a report is written as {', '.join(ENDINGS)}")
    if target is not None:
        _check_target(target, found)
    write(found, path, ENDINGS[path.suffix.lower()], target=target)
    return path


def _check_target(target: float, found: Sequence[Run]) -> None:
    """A target is a score of the one metric that all runs have, in its own unit."""
    from idiolect.simulation.metrics import metric_of

    metrics = [metric_of(run.table) for run in found]
    if any(metric.share for metric in metrics) and not 0 < target <= 1:
        raise UserError(f"target is a share here: 0.85 for 85 %, got {target}")
    if not math.isfinite(target):
        raise UserError(f"target must be a number, got {target}")


class _Callable(ModuleType):
    """`idiolect.report(...)` beside `idiolect.compare(...)`: the room has the name already."""

    def __call__(
        self,
        runs: Sequence[Run | str | Path] | Run | str | Path,
        out: str | Path = "report.html",
        target: float | None = None,
    ) -> Path:
        return write_report(runs, out, target)


sys.modules[__name__].__class__ = _Callable
