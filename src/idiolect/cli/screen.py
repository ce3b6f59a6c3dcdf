"""What commands print on stdout."""

import errno
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from idiolect.core.text import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from idiolect.report import Run

WIDE = 200  # columns of a pipe or file
LONGEST = 20  # characters of a cell that has a line to itself; longer ones are folded
OPTIONS_FROM = 120  # columns: a narrower window has no room for the options of methods


def print_table(found: "Sequence[Run]", target: float | None = None) -> None:
    """The comparison table of these runs, and what it says."""
    from rich.text import Text

    from idiolect import report as reports
    from idiolect.report.run_groups import groups
    from idiolect.report.verdict import verdict

    table = reports.rows(found, target)
    print_view(reports.terminal(table, console().width))
    if len(table) > 1:
        print_view(Text(verdict(groups(found), found)))
    if len(table) > 1 and all(row["gain"] is None for row in table):
        print("no gain column: add `local` to see what clients win over training alone")


def print_entries(kind: str, entries: list[dict[str, Any]], as_json: bool) -> None:
    """What there is of one kind, a line each."""
    if as_json:
        print_json(entries)
        return
    if not entries:
        print(f"no {kind} yet")
        return
    shown = {"methods": ("year", "traffic"), "datasets": ("classes", "found")}
    extra = (shown | {"recipes": ("paper", "claims"), "metrics": ("tasks",)}).get(kind, ())
    if any(entry.get("package") for entry in entries):
        extra = (*extra, "package")
    rows = []
    for entry in entries:
        options = ", ".join(option["name"] for option in entry.get("options", ()))
        told = (_listed(entry[key]) for key in extra)
        rows.append([entry["name"], entry["what"], *told, options])
    heads = ("name", "what", *extra, "options")
    if narrow := console().width < OPTIONS_FROM:
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    _print_grid(heads, rows)
    if narrow and any(entry.get("options") for entry in entries):
        print(f"options: `idiolect list {kind} --json`, or a window of {OPTIONS_FROM} columns")


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value or "–")


def print_federation(about: dict[str, Any], as_json: bool) -> None:
    """A federation as `data.describe` tells it, a line per client."""
    if as_json:
        print_json(about)
        return
    samples, task = about["samples"], about["task"]
    has = "targets" if task in ("regression", "multilabel") else "classes"
    print(
        f"{about['n_clients']} clients, {samples['train']} train, {samples['val']} validation and "
        f"{samples['test']} test samples of shape {about['shape']}, {task}, "
        f"{about['classes']} {has}"
    )
    rows, known = [], dict(enumerate(about["info"].get("class_names") or ()))
    for client in about["clients"]:
        histogram = client["histogram"]["train"].items()
        counts = "  ".join(f"{one_line(str(known.get(int(k), k)))}:{n}" for k, n in histogram)
        name = client["name"] + (" (unseen)" if client["unseen"] else "")
        rows.append([name, *(str(client[part]) for part in samples), counts])
    _print_grid(("client", *samples, "classes in training (class:samples)"), rows)


SHADES = " ░▒▓█"
WIDEST_SPLIT = 60  # classes that are drawn


def print_split(about: dict[str, Any]) -> None:
    """The split as a drawing: a row per client, a column per class, darker for more samples."""
    classes = about["classes"]
    if about["task"] != "classification":
        return
    if classes > WIDEST_SPLIT:
        print(f"the split is not drawn: {classes} classes; the most is {WIDEST_SPLIT}")
        return
    counts = [
        [client["histogram"]["train"].get(str(c), 0) for c in range(classes)]
        for client in about["clients"]
    ]
    most = max((n for row in counts for n in row), default=0) or 1
    wide = max(len(one_line(client["name"])) for client in about["clients"])
    print(f"training samples by client and class (█ is {most}):")
    for client, row in zip(about["clients"], counts, strict=True):
        cells = "".join(2 * SHADES[-(-n * (len(SHADES) - 1) // most)] for n in row)
        print(f"{one_line(client['name']):>{wide}} │{cells}│")


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    """Measured rows as a table, numbers to three digits."""
    columns = {n: v for row in rows for n, v in row.items() if not isinstance(v, list)}
    numbers = [name for name, value in columns.items() if not isinstance(value, str)]
    _print_grid(columns, ([_cell(row.get(n)) for n in columns] for row in rows), numbers, title)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False, default=str))


def _print_grid(
    columns: Iterable[str],
    rows: Iterable[Sequence[str]],
    numbers: Sequence[str] = (),
    title: str | None = None,
) -> None:
    print_view(grid(columns, rows, numbers, title))


def grid(
    columns: Iterable[str],
    rows: Iterable[Sequence[str]],
    numbers: Sequence[str] = (),
    title: str | None = None,
) -> "Table":
    """Rows of text as a table; `numbers`: the columns whose cells stand at the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    view = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for name in columns:
        view.add_column(name, justify="right" if name in numbers else "left")
    for row in rows:
        view.add_row(*(Text(one_line(cell)) for cell in row))
    return view


def fitting_grid(
    columns: Sequence[str], rows: Iterable[Sequence[str]], names: str, telling: Sequence[str]
) -> "Table":
    """Rows of text in the width of the window: the first column, that of `names` (cut where they
    do not differ) and of the others as many as fit, in the order of `telling`."""
    from idiolect.report.terminal_table import EDGES, GAP, NARROWEST_NAME, distinct

    lines, width = [[one_line(cell) for cell in row] for row in rows], console().width - EDGES
    cells = {head: [line[n] for line in lines] for n, head in enumerate(columns)}
    wide = {
        head: max([len(head), *(min(len(cell), LONGEST) for cell in column)]) + GAP
        for head, column in cells.items()
    }
    longest = max((len(name) for name in cells[names]), default=0)
    first = [head for head in columns[:1] if head != names]
    room = width - min(longest, max(NARROWEST_NAME, width // 4)) - sum(wide[one] for one in first)
    shown = {names, *first}
    for head in telling:
        if wide[head] > room:
            break
        room -= wide[head]
        shown.add(head)
    used = sum(wide[head] for head in shown if head != names)
    cells[names] = distinct(cells[names], max(NARROWEST_NAME, width - used))
    kept = [head for head in columns if head in shown]
    view = grid(kept, zip(*(cells[head] for head in kept), strict=True))
    for head, made in zip(kept, view.columns, strict=True):
        made.no_wrap = head == names or all(len(cell) <= LONGEST for cell in cells[head])
    if left := [head for head in columns if head not in shown]:
        view.caption, view.caption_justify = f"not shown in this width: {', '.join(left)}", "left"
    return view


def print_view(view: Any) -> None:
    console().print(view)


def console() -> "Console":
    """A pipe or file has no width of its own: a table is not folded there, unless COLUMNS says so.
    NO_COLOR is respected by rich."""
    from rich.console import Console

    told = sys.stdout.isatty() or "COLUMNS" in os.environ
    made = Console(highlight=False, width=None if told else WIDE)
    made.on_broken_pipe = _closed  # type: ignore[method-assign]
    return made


def _closed() -> None:
    """rich would end the program without a word."""
    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
