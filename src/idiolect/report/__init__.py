"""Reports from run directories: tables for terminal, Markdown, CSV and LaTeX, and one HTML page."""

from collections.abc import Callable, Sequence
from pathlib import Path

from idiolect import atomic
from idiolect.report.load import Run, find, load
from idiolect.report.tables import Row, as_csv, latex, markdown, rows, terminal

__all__ = ["Row", "Run", "find", "html", "load", "render", "rows", "terminal", "write"]


def html(found: Sequence[Run], title: str | None = None) -> str:
    """The self-contained page."""
    from idiolect.report.page import page

    return page(found, title)


FORMATS: dict[str, Callable[[Sequence[Run]], str]] = {
    "md": lambda found: markdown(rows(found)),
    "csv": lambda found: as_csv(rows(found)),
    "latex": lambda found: latex(rows(found)),
    "html": html,
}


def render(found: Sequence[Run], form: str) -> str:
    """The report as text in one of FORMATS."""
    return FORMATS[form](found)


def write(found: Sequence[Run], path: Path, form: str, title: str | None = None) -> None:
    text = html(found, title) if form == "html" else render(found, form)
    atomic.write_text(path, text)
