"""The tables of docs/cli.md and docs/methods.md: `python -m idiolect.cli.docs_tables docs`."""

import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from idiolect.cli.options import about, default_text, option_type
from idiolect.methods import REGISTRY
from idiolect.runs.config import SECTIONS, SETTINGS, RunConfig, section_type

BEGIN = "<!-- table: written by `python -m idiolect.cli.docs_tables docs` -->\n"
END = "<!-- end of table -->\n"


def settings() -> str:
    """One row per setting of a run, and one per key of those that have keys."""
    rows: list[tuple[str, ...]] = []
    for name in SETTINGS:
        option = f"`--{name.replace('_', '-')}`" if option_type(RunConfig, name) else ""
        key, default = f"{name}.name" if name in SECTIONS else name, default_text(RunConfig, name)
        option = "`METHOD`" if name == "method" else option
        rows.append((option, f"`{key}`", about(RunConfig, name), _code(default)))
        if name == "split":
            rows.append(("`--clients`", "`split.clients`", "number of clients", "`20`"))
        if kind := section_type(name):
            rows += [
                ("", f"`{name}.{key}`", about(kind, key), _code(default_text(kind, key)))
                for key in (known.name for known in fields(kind))
            ]
    return _table(("option", "setting", "meaning", "default"), rows)


def methods() -> str:
    """One row per registered method, in the registry's order."""
    rows = []
    for name, kind in REGISTRY.items():
        late = "used" if kind.asynchronous else "no"
        year = str(kind.year or "")
        rows.append((_code(name), kind.paper, year, kind.personal_part, kind.traffic, late))
    return _table(("method", "paper", "year", "personal", "traffic", "late"), rows)


TABLES = {"cli.md": settings, "methods.md": methods}


def renewed(page: Path) -> str:
    """The text of a page with its table as it is now."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{TABLES[page.name]()}\n{END}{rest.partition(END)[2]}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ("---",) * len(head), *rows))


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    for page in (Path(sys.argv[1]) / name for name in TABLES):
        page.write_text(renewed(page), encoding="utf-8")
