"""The split of a federation as a picture: a row per client, a column per class, darker for more.

Where samples have no class, the columns are the parts: training, validation, test.
"""

import csv
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from idiolect.core import files
from idiolect.core.text import shortened
from idiolect.errors import UserError

FORMS = (".html", ".png", ".csv")
LARGEST = 4000  # pixels of a side, about
INK = (31, 78, 121)


def check_form(path: Path) -> None:
    """Refuse a name that says no form, before anything is read."""
    if path.suffix.lower() not in FORMS:
        raise UserError(f"--out {path}: the picture of a split is {', '.join(FORMS)}")


def write(about: dict[str, Any], path: Path) -> None:
    """Draw what `data.describe` tells, in the form that the name of the file says."""
    check_form(path)
    heads, rows = counts_of(about)
    names = [str(client["name"]) for client in about["clients"]]
    if path.suffix.lower() == ".csv":
        files.write_text(path, _csv(names, heads, rows))
    elif path.suffix.lower() == ".html":
        files.write_text(path, _page(names, heads, rows))
    else:
        with files.replacing(path) as draft:
            draft.write_bytes(_png(names, heads, rows))


def counts_of(about: dict[str, Any]) -> tuple[list[str], list[list[int]]]:
    """Names of the columns, and the number of samples of every client in each."""
    clients = about["clients"]
    if about["task"] != "classification":
        parts = list(about["samples"])
        return parts, [[int(client[part]) for part in parts] for client in clients]
    known = about["info"].get("class_names") or []
    heads = [str(known[c]) if c < len(known) else str(c) for c in range(about["classes"])]
    tables = [client["histogram"]["train"] for client in clients]
    return heads, [[int(t.get(str(c), 0)) for c in range(len(heads))] for t in tables]


def _csv(names: list[str], heads: list[str], rows: list[list[int]]) -> str:
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["client", *heads])
    table.writerows([name, *row] for name, row in zip(names, rows, strict=True))
    return out.getvalue()


def _page(names: list[str], heads: list[str], rows: list[list[int]]) -> str:
    most = _most(rows)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    body = []
    for name, row in zip(names, rows, strict=True):
        cells = "".join(_cell(n, n / most) for n in row)
        body.append(f"<tr><th>{html.escape(name)}</th>{cells}</tr>")
    return f"""<!doctype html>
<meta charset="utf-8"><title>Split</title>
<style>body{{font:13px sans-serif}}td{{min-width:2em;text-align:right;padding:2px 4px}}
th{{font-weight:normal;text-align:left;padding:2px 6px}}table{{border-collapse:collapse}}</style>
<p>Samples by client and column; the darkest cell has {most}.</p>
<table><tr><th></th>{head}</tr>{"".join(body)}</table>
"""


def _cell(n: int, share: float) -> str:
    """Darker for more; white letters where black ones could not be read."""
    ink = f"background:rgba({','.join(map(str, INK))},{share:.3f})"
    return f'<td style="{ink}{";color:white" if share > 0.5 else ""}">{n or ""}</td>'


def _png(names: list[str], heads: list[str], rows: list[list[int]]) -> bytes:
    """Squares as large as fit, with the clients' names where they can be read."""
    from PIL import Image, ImageDraw

    side = max(1, min(18, LARGEST // max(len(rows), len(heads), 1)))
    words = [_ascii(shortened(name, 24)) for name in names] if side >= 11 else []
    left = 7 * max(map(len, words), default=0) + 8
    picture = Image.new("RGB", (left + side * len(heads) + 8, side * len(rows) + 24), "white")
    pen, most = ImageDraw.Draw(picture), _most(rows)
    pen.text((4, 4), f"samples, darkest {most}", fill="black")
    for at, row in enumerate(rows):
        top = 20 + at * side
        if words:
            pen.text((4, top + 2), words[at], fill="black")
        for k, n in enumerate(row):
            shade = tuple(round(255 - (255 - ink) * n / most) for ink in INK)
            corner = left + k * side
            pen.rectangle((corner, top, corner + side - 1, top + side - 1), fill=shade)
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def _ascii(text: str) -> str:
    """What the font that ships with Pillow can write."""
    return text.replace("…", "...").encode("ascii", "replace").decode()


def _most(rows: Sequence[Sequence[int]]) -> int:
    return max((n for row in rows for n in row), default=0) or 1
