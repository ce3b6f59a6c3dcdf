"""The files of a run as they must be: they may be damaged, or somebody else's."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from idiolect.core import own_metric
from idiolect.core.task import metric_named
from idiolect.core.text import reason, shortened
from idiolect.errors import UserError
from idiolect.simulation import metrics

Check = Callable[[Any], bool]
Form = (
    tuple[Check, str] | Mapping[str, Any]
)  # a test and what it asks for, or the keys of a section

ENDINGS = (".json", ".jsonl", ".yaml", ".parquet", ".safetensors", ".csv")
LARGEST = 2**53  # whole numbers up to here are exact in JSON


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST


def is_count(value: Any) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and 0 <= value <= LARGEST


COUNT: Form = (is_count, "a whole number of at least 0")
SECONDS: Form = (lambda value: _is_number(value) and 0 <= value < 1e12, "a number of at least 0")
SHARE: Form = (
    lambda value: value is None or (_is_number(value) and 0 <= value <= 1),
    "a number from 0 to 1, or null",
)
SWITCH: Form = (lambda value: isinstance(value, bool), "true or false")
NAME: Form = (lambda value: isinstance(value, str) and bool(value), "a name")
NAMES: Form = (
    lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
    "a list of names",
)
SECTION: Form = (lambda value: isinstance(value, dict), "a section with keys")

NUMBER: Form = (lambda value: value is None or _is_number(value), "a number or null")
STATS: Form = {"mean": SHARE, "pooled": SHARE, "p10": SHARE, "worst": SHARE}
CONFIG: Form = {
    "method": {"name": NAME},
    "data": {"name": NAME},
    "split": {"name": NAME},
    "model": SECTION,
    "rounds": COUNT,
    "seed": COUNT,
    "protocol": NAME,
}
EVENT: dict[str, Form] = {
    "round": COUNT,
    "accuracy": STATS,
    "accuracy_after": STATS,
    "bytes_up": COUNT,
    "bytes_down": COUNT,
    "seconds": SECONDS,
    "seconds_eval": SECONDS,
    "samples": COUNT,
    "diverged": SWITCH,
}
SUMMARY: dict[str, Form] = {
    "rounds": COUNT,
    "accuracy": {"last": STATS, "best": STATS},
    "clients": COUNT,
    "bytes_up": COUNT,
    "bytes_down": COUNT,
    "seconds": SECONDS,
    "diverged": SWITCH,
    "protocol": {"name": NAME, "value": SHARE, "what": NAME},
}
LATER = ("samples", "steps")  # not in older runs
WHOLE, TRUTH, REAL = "iu", "b", "f"  # kinds of NumPy columns
COLUMNS = {
    "round": WHOLE,
    "client": WHOLE,
    "test_size": WHOLE,
    "unseen": TRUTH,
    "accuracy_before": REAL,
    "accuracy_after": REAL,
}


@contextmanager
def sound(path: Path) -> Iterator[None]:
    """Libraries have many kinds of errors for a damaged file, all of which mean the same here."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or reason(error)}") from None
    except Exception as error:
        raise UserError(f"{path} is damaged: {reason(error)}") from None


def check_files(folder: Path) -> None:
    """What lies in a folder under the name of a file is one: reading a pipe or a device may
    never end."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        named = path.name.endswith(ENDINGS)
        if named and path.exists() and not (path.is_file() or path.is_dir()):
            raise UserError(f"{path} is neither a file nor a folder; put back what the run wrote")


def checked(value: Any, form: Form, where: Path | str, key: str = "") -> Any:
    """The value itself; an error that names the file and the key where it has another form."""
    if not isinstance(form, Mapping):
        fits, wanted = form
        if not fits(value):
            got = shortened(repr(value), 60)
            raise UserError(f"{where} is damaged: {key} must be {wanted}, got {got}")
        return value
    if not isinstance(value, dict):
        name = key or "it"
        raise UserError(f"{where} is damaged: {name} must be a section with keys")
    for name, inner in form.items():
        path = f"{key}.{name}" if key else name
        if name not in value:
            raise UserError(f"{where} is damaged: {path} is missing")
        checked(value[name], inner, where, path)
    return value


def plain_config(config: Any, where: Path | str) -> dict[str, Any]:
    """Settings that a report can use: of the right form, and nothing that JSON cannot hold."""
    checked(config, CONFIG, where)
    try:
        return dict(json.loads(json.dumps(config, allow_nan=False)))
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{where} is damaged: {reason(error)}") from None


def checked_event(event: Any, where: str) -> None:
    """UserError where a line of events.jsonl has another form."""
    checked(event, _of_metric(event, EVENT), where)


def plain_events(events: Sequence[Any], where: Path) -> list[dict[str, Any]]:
    """Events of the right form, a line each, every round from 0."""
    for number, event in enumerate(events):
        checked_event(event, f"{where}, line {number + 1},")
        if event["round"] != number:
            raise UserError(
                f"{where} is damaged: line {number + 1} is of round {event['round']}, not {number}"
            )
    return list(events)


def plain_table(table: Mapping[str, np.ndarray], where: Path) -> dict[str, np.ndarray]:
    """The client table with the columns that numbers are made of."""
    if not len(table.get("round", ())):
        return dict(table)
    metric = metrics.metric_of(table).name
    for name in (one.replace("accuracy", metric) for one in COLUMNS):
        if name not in table:
            raise UserError(f"{where} is damaged: it has no column {name}")
    for name, column in table.items():
        if name == "name":  # of the client, where the data gives it one
            if column.ndim != 1 or not all(isinstance(one, str) for one in column.tolist()):
                raise UserError(f"{where} is damaged: column name holds other values than words")
            continue
        kinds = COLUMNS.get(name, WHOLE + TRUTH + REAL)
        if column.ndim != 1 or column.dtype.kind not in kinds:
            raise UserError(f"{where} is damaged: column {name} holds {column.dtype} values")
        if "accuracy" in name and not _all_shares(column):
            raise UserError(f"{where} is damaged: {name} has values outside 0 to 1")
        if kinds == WHOLE and int(column.min()) < 0:
            raise UserError(f"{where} is damaged: {name} has negative values")
    order = np.lexsort((table["client"], table["round"]))
    again = [np.diff(table[name][order]) == 0 for name in ("round", "client")]
    if (again[0] & again[1]).any():
        raise UserError(f"{where} is damaged: it has a client twice in one round")
    return dict(table)


def plain_summary(summary: Any, where: Path | str) -> dict[str, Any]:
    """The summary of a finished run."""
    return dict(checked(summary, _of_metric(summary, SUMMARY), where))


def checked_summary(
    summary: Any, rounds: int, table: Mapping[str, np.ndarray], where: Path
) -> dict[str, Any]:
    """The summary of a finished run, which has `rounds` events and this table."""
    summary = plain_summary(summary, where)
    recorded = int(max(table.get("round", ()), default=-1)) + 1
    if not summary["rounds"] + 1 == rounds == recorded:
        raise UserError(
            f"{where} is of {summary['rounds']} rounds, but events.jsonl has {rounds - 1} and "
            f"clients.parquet {recorded - 1}: one of them is damaged"
        )
    return summary


def _of_metric(value: Any, form: Mapping[str, Any]) -> Form:
    """The form of an event or summary: a metric that is no share may be any number."""
    if not isinstance(value, dict):
        return form
    section = value.get("metric")
    own_metric.remember(section)
    name = section.get("name") if isinstance(section, dict) else "accuracy"
    shares = isinstance(name, str) and metric_named(name).share
    later = {key: NUMBER for key in LATER if key in value and key not in form}
    return {**(form if shares else _numbers(form)), **later}


def _numbers(form: Any) -> Any:
    if isinstance(form, Mapping):
        return {name: _numbers(inner) for name, inner in form.items()}
    return NUMBER if form is SHARE else form


def _all_shares(column: np.ndarray) -> bool:
    known = column[np.isfinite(column)]
    infinite = bool(np.isinf(column).any())
    return not infinite and bool(((known >= 0) & (known <= 1)).all())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file with keys; empty if there is none."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON number")

    try:
        loaded = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {reason(error)}") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path} is damaged: it must hold keys and values in braces")
    return loaded
