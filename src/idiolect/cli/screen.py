"""What commands print on stdout."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from idiolect.report import Run


def _console() -> "Console":
    from rich.console import Console

    # A pipe or file has no width of its own: never fold a table there.
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def print_table(found: "Sequence[Run]") -> None:
    from idiolect import report as reports

    table = reports.rows(found)
    _console().print(reports.terminal(table))
    if len(table) > 1 and all(row["gain"] is None for row in table):
        print("no gain column: add `local` to see what clients win over training alone")


def print_entries(kind: str, entries: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(entries)
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    view = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    extra = {"methods": ("year", "traffic"), "datasets": ("classes", "found")}.get(kind, ())
    for column in ("name", "what", *extra, "options"):
        view.add_column(column)
    for entry in entries:
        options = entry.get("options") or []
        names = ", ".join(options if isinstance(options, dict) else (o["name"] for o in options))
        cells = [entry["name"], entry["what"], *(str(entry[key] or "–") for key in extra), names]
        view.add_row(*map(Text, cells))
    _console().print(view if entries else f"no {kind} yet")


def print_federation(about: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    samples = about["samples"]
    print(
        f"{about['n_clients']} clients, {samples['train']} train, {samples['val']} validation and "
        f"{samples['test']} test samples of shape {about['shape']}, {about['classes']} classes"
    )
    view = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("client", "train", "val", "test", "classes in training (class:samples)"):
        view.add_column(column)
    for client in about["clients"]:
        counts = "  ".join(f"{k}:{n}" for k, n in client["histogram"]["train"].items())
        name = client["name"] + (" (unseen)" if client["unseen"] else "")
        view.add_row(
            *map(Text, (name, *(str(client[p]) for p in ("train", "val", "test")), counts))
        )
    _console().print(view)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False, default=str))


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    """Measured rows as a table, numbers to three digits."""
    from rich import box
    from rich.table import Table

    view = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    columns = {n: v for row in rows for n, v in row.items() if not isinstance(v, list)}
    for name, value in columns.items():
        view.add_column(name, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        view.add_row(*(_cell(row.get(name)) for name in columns))
    _console().print(view)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
