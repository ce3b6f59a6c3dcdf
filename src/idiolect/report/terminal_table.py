"""The comparison table in a terminal, however narrow it is."""

from collections.abc import Sequence
from typing import Any

from idiolect.report.significance import BOLD, NOTHING_BOLD
from idiolect.report.tables import Row, cells, columns, headings, is_bold

# The columns of a narrow window, the one that says most first
TELLING = ("accuracy", "rounds_to", "mb_to", "seconds_to", "gain", "harmed", "p10", "worst",
           "gain_ft", "unseen", "validation", "mb_up", "seconds_per_round", "best", "protocol",
           "pooled", "mb_down", "steps", "samples", "lr")  # fmt: skip
NARROWEST_NAME, GAP, EDGES = 12, 3, 2  # characters


def terminal(table: Sequence[Row], width: int | None = None) -> Any:
    """A rich table; bold is what a test cannot tell from the best. In a narrow window the columns
    that say least are left out and long names are cut where they do not differ."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    width = width or 10_000
    there = columns(table)
    heads, texts = headings(table), [cells(row, there) for row in table]
    keys = [key for key, _, _ in there]
    shown = _fitting(keys, [heads, *texts], width)
    used = sum(_widest([heads, *texts], n) + GAP for n in shown[1:])
    names = distinct([line[0] for line in texts], max(NARROWEST_NAME, width - EDGES - used))
    view = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for position in shown:
        view.add_column(heads[position], justify="right" if position else "left", no_wrap=True)
    for row, name, line in zip(table, names, texts, strict=True):
        bold = [is_bold(row, key) for key in keys]
        parts = [name, *line[1:]]
        view.add_row(*(Text(parts[n], style="bold" if bold[n] else "") for n in shown))
    notes = []
    if len(table) > 1:
        tested = any(row.get("standing") for row in table)
        notes.append(BOLD if tested else NOTHING_BOLD)
    if len(shown) < len(keys):
        left = ", ".join(heads[n] for n in range(len(keys)) if n not in shown)
        notes.append(f"not shown in this width: {left}")
    view.caption, view.caption_justify = "\n".join(notes) or None, "left"
    return view


def _fitting(keys: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> list[int]:
    """The columns that fit beside the names, by what they say."""
    places = {key: n for n, key in enumerate(keys)}
    room = width - EDGES - min(_widest(lines, 0), max(NARROWEST_NAME, width // 4))
    shown = [0]
    for key in (key for key in TELLING if key in places):
        needed = _widest(lines, places[key]) + GAP
        if needed > room:
            break
        room -= needed
        shown.append(places[key])
    return sorted(shown)


def _widest(lines: Sequence[Sequence[str]], column: int) -> int:
    return max(len(line[column]) for line in lines)


def distinct(names: Sequence[str], width: int) -> list[str]:
    """Names no longer than `width`: without the settings they share, then cut in the middle where
    they still differ; numbered if no cut keeps them apart."""
    if all(len(name) <= width for name in names):
        return list(names)
    names = [name if len(name) <= width else _what_differs(name, names) for name in names]
    for head in sorted(range(1, width - 1), key=lambda n: abs(n - width // 2)):
        tail = width - 1 - head
        cut = [n if len(n) <= width else f"{n[:head]}…{n[-tail:]}" for n in names]
        if len(set(cut)) == len(set(names)):
            return cut
    known = list(dict.fromkeys(names))
    ends = {name: f"…#{n + 1}" for n, name in enumerate(known)}
    return [n if len(n) <= width else n[: width - len(ends[n])] + ends[n] for n in names]


def _what_differs(name: str, names: Sequence[str]) -> str:
    """`fedprox epochs=2 mu=0.1` among others with two epochs is `fedprox … mu=0.1`."""
    first, *own = name.split(" ")
    alike = [other.split(" ")[1:] for other in names if other.split(" ")[0] == first]
    common = set(own).intersection(*alike) if len(set(map(tuple, alike))) > 1 else set()
    words = [first, *("…" if word in common else word for word in own)]
    kept = [word for n, word in enumerate(words) if word != "…" or words[n - 1] != "…"]
    return " ".join(kept).removesuffix(" …")
