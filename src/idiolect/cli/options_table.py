"""The settings table of docs/cli.md: `python -m idiolect.cli.options_table docs/cli.md`."""

import sys
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from idiolect.cli.options import about, default_text, option_type
from idiolect.core.fields import Checked, default_of
from idiolect.runs.config import SECTIONS, SETTINGS, section_type

BEGIN = "<!-- settings: written by `python -m idiolect.cli.options_table docs/cli.md` -->\n"
END = "<!-- end of settings -->\n"


def table() -> str:
    """One row per setting of a run, and one per key of those that have keys."""
    rows: list[tuple[str, ...]] = [("option", "setting", "meaning", "default"), ("---",) * 4]
    for name in SETTINGS:
        option = f"`--{name.replace('_', '-')}`" if option_type(name) else ""
        if name == "method":
            option = "`METHOD`"
        key = f"{name}.name" if name in SECTIONS else name
        rows.append((option, f"`{key}`", about(name), _code(default_text(name))))
        if name == "split":
            rows.append(("`--clients`", "`split.clients`", "number of clients", "`20`"))
        if kind := section_type(name):
            rows += [_key_row(kind, known) for known in fields(kind)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def _key_row(kind: type[Checked], known: Field[Any]) -> tuple[str, ...]:
    default = default_of(known)
    text = _code("" if default == () else str(default))
    return "", f"`{kind.section}.{known.name}`", about(known.name, kind), text


def renewed(text: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
