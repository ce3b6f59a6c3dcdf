"""A finished run as a line of `runs.jsonl`, which may be damaged or somebody else's."""

import json
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from idiolect.core.text import one_line, shortened
from idiolect.errors import UserError
from idiolect.papers import numbers
from idiolect.papers.cells import settings_digest
from idiolect.runs.config import Config
from idiolect.runs.run_files import (
    NAME,
    NUMBER,
    SECTION,
    SWITCH,
    Form,
    checked,
    plain_config,
    plain_summary,
    sound,
)

FORMULA = ("=", "+", "-", "@")  # what a spreadsheet computes


def _is_word(value: Any) -> bool:
    if not isinstance(value, str):
        return value is None or isinstance(value, int | float)
    return one_line(value) == value and not value.lstrip().startswith(FORMULA)


WORD: Form = (_is_word, "a word or a number")
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

    @property
    def is_current(self) -> bool:
        """Whether its method still computes what it computed then."""
        return bool(self.machine.get("revision", 1) == revision(self.config))

    def shown(self, metric: str) -> Any:
        """A number of the run; MISSING if only the run directory could tell it."""
        if metric in self.numbers:
            return self.numbers[metric]
        return numbers.from_summary(self.summary, metric)


def revision(config: Config) -> int:
    """Of the method with these settings as it is now; 1 where it is not ours."""
    return _revision(json.dumps(config["method"]))


def of_revision(config: Config) -> str:
    """The end of a name: files of one revision of a method are not those of another."""
    return f"-revision{now}" if (now := revision(config)) > 1 else ""


@lru_cache(maxsize=4096)
def _revision(section: str) -> int:
    from idiolect import methods

    known = json.loads(section)
    try:
        return methods.build(known).revision if known.get("name") in methods.REGISTRY else 1
    except UserError:  # settings of another version: no cell has them
        return 1


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
    for name in set(found) - {field.name for field in fields(Record)}:
        raise UserError(f"{where} is damaged: it has an unknown key '{shortened(name)}'")
    checked(found.get("quick", False), SWITCH, where, "quick")
    words = {"borrowed": found.get("borrowed", ""), "dtype": found["config"]["dtype"]}
    for name, value in {**words, **found["machine"]}.items():
        checked(value, WORD, where, name)
    return Record(**found)
