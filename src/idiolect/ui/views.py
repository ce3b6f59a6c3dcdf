"""What the page shows of runs, as plain JSON: the report's views, one client, one matrix, sites."""

from collections import Counter
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from idiolect.core.text import one_line
from idiolect.errors import UserError
from idiolect.report import page
from idiolect.report.load import Run, load
from idiolect.report.log_plots import smaller
from idiolect.ui.event_tail import EventTail

CLIENT_COLUMNS = ("round", "accuracy_before", "accuracy_after", "loss_before", "loss_after")
JOURNAL_SHOWN = 200  # newest lines
RUNS_KEPT = 8  # in memory, the last ones asked for


def as_it_is(path: Path) -> Run:
    """The run, read again only if it changed: a slider asks for many rounds of one run."""
    changed = [path.stat().st_mtime_ns]  # files are replaced by renaming, all but one
    with suppress(FileNotFoundError):
        about = (path / "events.jsonl").stat()
        changed += [about.st_mtime_ns, about.st_size]
    return _read_run(path, tuple(changed))


@lru_cache(maxsize=RUNS_KEPT)
def _read_run(path: Path, changed: tuple[int, ...]) -> Run:
    return load(path)


def report(paths: list[Path]) -> dict[str, Any]:
    """The report of these runs: HTML, figures, the clients and what the methods logged."""
    found = [as_it_is(path) for path in paths]
    html, figures = page.views(found, squares=len(found) > 1)
    return {
        "title": one_line(page.heading(found)),
        "html": html,
        "figures": figures,
        "clients": clients(found[0]) if len(found) == 1 else None,
        "matrices": matrices(found[0]) if len(found) == 1 else [],
    }


def clients(run: Run) -> dict[str, list[Any]]:
    """The last round of every client, a column each."""
    table = run.table
    if not len(table.get("round", ())):
        return {}
    last = table["round"] == table["round"].max()
    return {name: _plain(values[last]) for name, values in table.items() if name != "round"}


def one_client(path: Path, client: int) -> dict[str, list[Any]]:
    """Accuracy and loss of one client over all rounds."""
    table = as_it_is(path).table
    rows = table["client"] == client
    if not rows.any():
        raise UserError(f"the run has no client {client}")
    return {name: _plain(table[name][rows]) for name in CLIENT_COLUMNS if name in table}


def matrices(run: Run) -> list[dict[str, Any]]:
    """Square logs (client × client) and the rounds they were kept for."""
    return [
        {"name": one_line(name), "rounds": sorted(values)}
        for name, values in run.matrices.items()
        if all(value.ndim == 2 and min(value.shape) > 1 for value in values.values())
    ]


def matrix(path: Path, name: str, round: int) -> dict[str, Any]:
    """One such log in one round; clients that were absent are blank."""
    logged = {one_line(key): values for key, values in as_it_is(path).matrices.items()}
    try:
        value = logged[name][round].double().numpy()
    except KeyError:
        raise UserError(f"nothing called '{one_line(name)}' was logged in round {round}") from None
    if value.ndim != 2:
        raise UserError(f"'{one_line(name)}' is not a matrix")
    return {"values": [_plain(row) for row in smaller(value)], "size": list(value.shape)}


def federation(path: Path) -> dict[str, Any]:
    """The sites of a deployed federation: who they are, when they last answered, what was refused
    and why."""
    _, journal = EventTail(path / "flower" / "journal.jsonl").fresh()
    _, rounds = EventTail(path / "events.jsonl").fresh()
    sites: dict[int, dict[str, Any]] = {}
    counts: Counter[str] = Counter()
    for line in journal:
        what, client = one_line(line.get("what", "")), line.get("client")
        counts[what] += 1
        if not isinstance(client, int):
            continue
        site = sites.setdefault(client, _site(client))
        site["seen"] = _number(line.get("time"))
        if what == "enrolled":
            site |= {"name": one_line(line.get("name", "")), "state": "here"}
        elif what == "gone":
            site["state"] = "gone"
        else:
            site["refused"] += what != "late"
            site["last_note"] = one_line(f"{what}: {line.get('reason', '')}")[:200]
    for event in rounds:
        _count_round(sites, event)
    lines = [{k: one_line(v)[:300] for k, v in line.items()} for line in journal[-JOURNAL_SHOWN:]]
    known = [sites[client] for client in sorted(sites)]
    return {"sites": known, "counts": dict(counts), "journal": lines[::-1]}


def _site(client: int) -> dict[str, Any]:
    return {
        "client": client,
        "name": "",
        "state": "unknown",
        "seen": None,
        "round": None,
        "delivered": 0,
        "staleness": None,
        "refused": 0,
        "last_note": "",
    }


def _count_round(sites: dict[int, dict[str, Any]], event: dict[str, Any]) -> None:
    arrived, staleness = event.get("arrived"), event.get("staleness")
    if not isinstance(arrived, list) or not isinstance(staleness, list):
        return
    for client, late in zip(arrived, staleness, strict=False):
        if isinstance(client, int):
            site = sites.setdefault(client, _site(client))
            site["delivered"] += 1
            site |= {"round": event.get("round"), "staleness": late}
            site["seen"] = max(site["seen"] or 0, _number(event.get("time")) or 0)


def _plain(values: np.ndarray) -> list[Any]:
    """Numbers as JSON has them: what is not finite is null."""
    if values.dtype.kind == "f":
        return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values.tolist()]
    return [v if isinstance(v, int) else one_line(v) for v in values.tolist()]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and np.isfinite(value) else None
