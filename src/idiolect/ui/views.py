"""What the page shows of runs, as plain JSON: the report's views, one client, one matrix."""

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from idiolect.core.text import one_line
from idiolect.errors import UserError
from idiolect.report import page
from idiolect.report.load import Run, load
from idiolect.report.log_plots import fewer, similar_first, smaller
from idiolect.simulation import metrics

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
        "metric": _metric(found[0]),
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


def one_client(path: Path, client: int) -> dict[str, Any]:
    """The score and loss of one client over all rounds, and what the score is."""
    run = as_it_is(path)
    rows, metric = run.table["client"] == client, _metric(run)
    if not rows.any():
        raise UserError(f"the run has no client {client}")
    series = [f"{what}_{when}" for what in (metric["name"], "loss") for when in ("before", "after")]
    shown = [name for name in ("round", *series) if name in run.table]
    return {"metric": metric, "rounds": {name: _plain(run.table[name][rows]) for name in shown}}


def _metric(run: Run) -> dict[str, Any]:
    metric = metrics.metric_of(run.table)
    return {"name": metric.name, "share": metric.share}


def matrices(run: Run) -> list[dict[str, Any]]:
    """Square logs (client × client) and the rounds they were kept for."""
    return [
        {"name": one_line(name), "rounds": sorted(values)}
        for name, values in run.matrices.items()
        if all(value.ndim == 2 and min(value.shape) > 1 for value in values.values())
    ]


def matrix(path: Path, name: str, round: int, ordered: bool = False) -> dict[str, Any]:
    """One such log in one round; clients that were absent are blank. `ordered`: with the order in
    which clients that are similar in the last round are neighbours."""
    logged = {one_line(key): values for key, values in as_it_is(path).matrices.items()}
    try:
        value = logged[name][round].double().numpy()
    except KeyError:
        raise UserError(f"nothing called '{one_line(name)}' was logged in round {round}") from None
    if value.ndim != 2:
        raise UserError(f"'{one_line(name)}' is not a matrix")
    cells = smaller(value)
    found: dict[str, Any] = {"values": [_plain(row) for row in cells], "size": list(value.shape)}
    found["clients"] = fewer(range(len(value)))
    if ordered and cells.shape[0] == cells.shape[1]:
        last = logged[name][max(logged[name])].double().numpy()
        same = last.shape == value.shape
        found["order"] = similar_first(smaller(last) if same else cells)
    return found


def _plain(values: np.ndarray) -> list[Any]:
    """Numbers as JSON has them: what is not finite is null."""
    if values.dtype.kind == "f":
        return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values.tolist()]
    return [v if isinstance(v, int) else one_line(v) for v in values.tolist()]
