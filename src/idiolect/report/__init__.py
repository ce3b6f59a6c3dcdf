"""Reports from run directories: tables for terminal, Markdown, CSV and LaTeX, and one HTML page."""

from collections.abc import Callable, Sequence
from pathlib import Path

from idiolect.core import files
from idiolect.errors import UserError
from idiolect.report.load import Run, find, load
from idiolect.report.tables import Row, as_csv, latex, markdown, rows
from idiolect.report.terminal_table import terminal

__all__ = ["Row", "Run", "find", "html", "load", "render", "rows", "terminal", "write", "write_all"]


TABLES: dict[str, Callable[[Sequence[Row]], str]] = {
    "md": markdown,
    "csv": as_csv,
    "latex": latex,
}
FORMATS = (*TABLES, "html")


def html(found: Sequence[Run], title: str | None = None) -> str:
    """The self-contained page."""
    from idiolect.report.page import page

    return page(found, title)


def render(found: Sequence[Run], form: str, title: str | None = None) -> str:
    """The report as text in one of FORMATS; the page alone has a title."""
    return html(found, title) if form == "html" else TABLES[form](rows(found))


def write(found: Sequence[Run], path: Path, form: str, title: str | None = None) -> None:
    files.remove_drafts(path.parent, path.name)
    files.write_text(path, render(found, form, title))


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
