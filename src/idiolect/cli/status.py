"""`idiolect status`: how runs and the sites of real federations stand, as their folders tell."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idiolect.cli import screen
from idiolect.cli.options import Json, examples
from idiolect.cli.options import path as as_path
from idiolect.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from idiolect.ui.run_index import RunEntry, RunIndex

commands = typer.Typer()
EVERY = 2.0  # seconds between two looks
MOST_RUNS = 40  # of a folder, the newest; --json has all
NOTES = 5  # newest lines of a federation's journal
RUN_COLUMNS = ("run", "state", "method", "data", "seed", "round", "score", "to go", "changed")
SITE_COLUMNS = ("site", "name", "state", "last seen", "last round", "late", "answers", "MB sent",
                "MB received", "refused", "why")  # fmt: skip
# The columns of a narrow window, the one that says most first
RUN_TELLING = ("state", "score", "round", "method", "to go", "changed", "data", "seed")
SITE_TELLING = ("state", "last seen", "why", "last round", "refused", "late", "answers", "MB sent",
                "MB received")  # fmt: skip


@commands.command(
    epilog=examples(
        "idiolect status runs/sites",
        "idiolect status runs/sites --watch",
        "idiolect status runs",
        "idiolect status runs/sites --json",
    )
)
def status(
    where: Annotated[
        Path,
        typer.Argument(metavar="[RUN]", parser=as_path, help="A run, or a folder of runs (runs)."),
    ] = Path("runs"),
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again every two seconds while a run is going.")
    ] = False,
    as_json: Json = False,
) -> None:
    """How a run and its sites stand, or all runs of a folder; nothing is started or changed."""
    if watch and as_json:
        raise UserError("--watch shows a table; leave out --watch or --json")
    looks = _looks_at_run(where) if _is_run(where) else _looks_at_folder(where)
    if as_json:
        screen.print_json(next(looks)[0])
        return
    if not watch:
        screen.print_view(next(looks)[1])
        return
    from rich.live import Live

    with Live(console=screen.console(), auto_refresh=False) as live:
        for told, view in looks:
            live.update(view, refresh=True)
            runs = told if isinstance(told, list) else [told]
            if not any(run["state"] in ("running", "waiting") for run in runs):
                return
            time.sleep(EVERY)


def _is_run(where: Path) -> bool:
    if not where.is_dir():
        raise UserError(f"{where} is no folder; give a run directory, or a folder of runs")
    return (where / "config.yaml").exists() or (where / "flower" / "terms.json").exists()


def _looks_at_folder(where: Path) -> Iterator[tuple[Any, "RenderableType"]]:
    """Every look anew: what programs read, and what people see."""
    from idiolect.ui.run_index import RunIndex

    index = RunIndex(where)
    while True:
        index.refresh(force=True)
        while index.read_some():
            pass
        _read_all(index)
        runs = sorted(index.entries.values(), key=lambda run: -run.changed)
        if not runs:
            raise UserError(f"no runs in {where}; `idiolect run … --out DIR` writes one")
        rows = [_run_row(run) for run in runs[:MOST_RUNS]]
        view: RenderableType = screen.fitting_grid(RUN_COLUMNS, rows, "run", RUN_TELLING)
        if (more := len(runs) - MOST_RUNS) > 0:
            view = _group(view, f"and {more} older; --json has all")
        yield [run.as_dict() for run in runs], view


def _looks_at_run(where: Path) -> Iterator[tuple[Any, "RenderableType"]]:
    from idiolect.ui.run_index import RunIndex
    from idiolect.ui.site_board import SiteBoard

    name = str(where)
    where = where.resolve()
    index, board = RunIndex(where.parent, depth=1), SiteBoard(where)
    while True:
        begun = (where / "config.yaml").exists()
        index.refresh(force=True)
        run = index.details([where.name])[0] if begun and where.name in index.entries else None
        _read_all(index)
        if run is not None and run.problem:
            raise UserError(f"{name}: {run.problem}")
        told = {} if run is None else run.as_dict()
        if run is None or run.federation:
            sites, read = board(), -1
            while read != board.rounds.bytes_read:  # a look reads a part of a large file
                read, sites = board.rounds.bytes_read, board()
            told = _federation(where) | told | sites
        told["id"] = name
        yield told, _run_view(told, run)


def _read_all(index: "RunIndex") -> None:
    """A look reads no more than a part of a large file; look until there is no more."""
    version = -1
    while version != index.version:
        version = index.version
        index.refresh(force=True)


def _federation(where: Path) -> dict[str, Any]:
    """What the server wrote before its run began, which it does with enough sites."""
    from idiolect.ui.plain_files import opened

    found: dict[str, Any] = {}
    for name in ("terms.json", "status.json"):
        try:
            with opened(where / "flower" / name) as file:
                value = json.load(file)
            found |= value if isinstance(value, dict) else {}
        except (OSError, ValueError, RecursionError):
            continue
    failed = found.get("state") == "failed"
    counts = [n if isinstance(n, int) else 0 for n in map(found.get, ("clients", "minimum"))]
    return {
        "state": "stopped" if failed else "waiting",
        "problem": str(found.get("reason", ""))[:300] if failed else "",
        "clients": counts[0],
        "minimum": counts[1] or counts[0],
        "federation": True,
    }


def _run_view(told: dict[str, Any], run: "RunEntry | None") -> "RenderableType":
    parts: list[Any] = [_headline(told, run)]
    if told["problem"]:
        parts.append(f"stopped: {told['problem']}")
    if not told["federation"]:
        return _group(*parts)
    sites = told["sites"]
    here = sum(site["state"] == "here" for site in sites)
    if told["state"] in ("waiting", "running"):
        parts.append(f"{here} of {told['clients']} sites are here")
    else:
        parts.append(f"{len(sites)} of {told['clients']} sites were there; as they were last heard")
    if sites:
        rows = [_site_row(site) for site in sites]
        parts.append(screen.fitting_grid(SITE_COLUMNS, rows, "name", SITE_TELLING))
    return _group(*parts, *(_note(line) for line in reversed(told["journal"][:NOTES])))


def _headline(told: dict[str, Any], run: "RunEntry | None") -> str:
    if run is None:
        waits = f"waits for its first sites; it begins with {told['minimum']}"
        return f"{told['id']}: {waits if told['state'] == 'waiting' else 'did not begin'}"
    _, state, method, data, seed, round_, score, left, changed = _run_row(run)
    parts = [f"{told['id']}: {state}", f"{method} on {data}, seed {seed}", f"round {round_}"]
    named = score if run.metric != "accuracy" else f"accuracy {score}"
    parts += [named] if run.accuracy is not None else []
    parts += [f"{left} to go"] if run.eta is not None else []
    return ", ".join([*parts, f"changed {changed} ago"])


def _run_row(run: "RunEntry") -> list[str]:
    from idiolect.core.task import metric_named
    from idiolect.runs.live_line import duration

    if run.problem:
        return [run.id, f"problem: {run.problem}", *["–"] * 6, _ago(run.changed)]
    share = metric_named(run.metric).share
    score = "–" if run.accuracy is None else (
        f"{100 * run.accuracy:.1f} %" if share else f"{run.accuracy:.4g}"
    )  # fmt: skip
    score += f" {run.metric}" if run.accuracy is not None and run.metric != "accuracy" else ""
    left = "–" if run.eta is None else duration(run.eta)
    round_ = f"{run.round} of {run.rounds}"
    about = [run.method, run.data, str(run.seed), round_, score, left]
    return [run.id, run.state, *about, _ago(run.changed)]


def _site_row(site: dict[str, Any]) -> list[str]:
    numbers = (site["round"], site["staleness"], site["delivered"])
    told = ["–" if number is None else str(number) for number in numbers]
    sent = [f"{site[key] / 1e6:.1f}" for key in ("bytes_up", "bytes_down")]
    about = [str(site["client"]), site["name"] or "–", site["state"], _ago(site["seen"])]
    return [*about, *told, *sent, str(site["refused"]), site["last_note"] or "–"]


def _note(line: dict[str, str]) -> str:
    try:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(line.get("time", ""))))
    except (ValueError, OverflowError, OSError):
        when = "–"
    site = line.get("client")
    known = site if site != "-1" else None  # -1: a node that has not said who it is
    about = {"site": known, "": line.get("reason") or line.get("name")}
    told = [f"{key} {value}".strip() for key, value in about.items() if value]
    return f"{when}  {line.get('what', '')}  {'  '.join(told)}".rstrip()


def _ago(when: float | None) -> str:
    """How long since, in the largest unit that fits."""
    if not when:
        return "–"
    seconds = max(0.0, time.time() - when)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _group(*parts: Any) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    from idiolect.core.text import one_line

    return Group(*(Text(one_line(part)) if isinstance(part, str) else part for part in parts))
