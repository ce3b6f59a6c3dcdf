"""Series over rounds as small CSV files: what a figure shows of a run."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from idiolect.core import files
from idiolect.papers.numbers import Moment
from idiolect.runs.run_files import sound


def write(path: Path, moments: Mapping[str, Sequence[Moment]]) -> None:
    """Series beside those that the file has already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = read(path) if path.exists() else {}
    lines = ["series,round,item,value"]
    for name, values in {**before, **moments}.items():
        lines += [f'{name},{m.round},"{m.item}",{m.value:.6g}' for m in _thinned(values)]
    files.write_text(path, "\n".join(lines) + "\n")


def _thinned(moments: Sequence[Moment]) -> list[Moment]:
    """Matrices (items `client,client`) in rounds 1, 2, 5, 10, 20, 50, … and the last: all rounds
    would be megabytes, and a figure shows a few."""
    last = max((m.round for m in moments), default=0)
    shown = {last} | {first * 10**n for first in (1, 2, 5) for n in range(6)}
    return [m for m in moments if "," not in m.item or m.round in shown]


def read(path: Path) -> dict[str, list[Moment]]:
    found: dict[str, list[Moment]] = {}
    with sound(path), open(path, encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            moment = Moment(int(line["round"]), line["item"], float(line["value"]))
            found.setdefault(line["series"], []).append(moment)
    return found


def names(path: Path) -> list[str]:
    return list(read(path))
