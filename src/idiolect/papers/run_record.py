"""A finished run as a line of `runs.jsonl`, which may be damaged or somebody else's."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idiolect.papers import numbers
from idiolect.papers.cells import settings_digest
from idiolect.runs.config import Config
from idiolect.runs.run_files import (
    NAME,
    NUMBER,
    SECTION,
    Form,
    checked,
    plain_config,
    plain_summary,
    sound,
)

RECORD: Form = {
    "numbers": SECTION,
    "config": {"participation": SECTION, "dtype": NAME},  # and what every config has
    "summary": SECTION,
    "machine": SECTION,
}


@dataclass(frozen=True)
class Record:
    """One finished run."""

    numbers: dict[str, float | None]
    config: Config
    summary: dict[str, Any]
    machine: dict[str, Any]
    quick: bool = False
    borrowed: str = ""  # the recipe that ran it, where that was another one

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def seconds(self) -> float:
        return float(self.summary["seconds"])

    @property
    def diverged(self) -> bool:
        return bool(self.summary.get("diverged"))

    @property
    def digest(self) -> str:
        return settings_digest(self.config)

    def shown(self, metric: str) -> Any:
        """A number of the run; MISSING if only the run directory could tell it."""
        if metric in self.numbers:
            return self.numbers[metric]
        return numbers.from_summary(self.summary, metric)


def read_records(path: Path) -> list[Record]:
    """The records of a file, none where there is no file."""
    if not path.exists():
        return []
    with sound(path):
        lines = path.read_text(encoding="utf-8").splitlines()
        return [_read(line, f"{path}, line {number},") for number, line in enumerate(lines, 1)]


def _read(line: str, where: str) -> Record:
    found = checked(json.loads(line), RECORD, where)
    plain_config(found["config"], where)
    plain_summary(found["summary"], where)
    for name, value in found["numbers"].items():
        checked(value, NUMBER, where, f"numbers.{name}")
    return Record(**found)
