"""`idiolect bench`: time this machine."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from idiolect.cli import screen
from idiolect.cli.options import Json, examples, path, with_settings
from idiolect.errors import UserError

commands = typer.Typer()
SAY = partial(typer.echo, err=True)

Peers = Annotated[
    list[str] | None,
    typer.Option(help="Also time pfllib, fedas, flbench, blazefl or pfl: NAME=PATH."),
]
PeerRounds = Annotated[int | None, typer.Option(min=1, help="Rounds of a peer, after a first one.")]
Only = Annotated[
    str | None, typer.Option(help="Only these networks or methods, with commas between.")
]
Clients = Annotated[str | None, typer.Option(help="How many clients (scale), with commas between.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes side by side (table).")]
ResultsIn = Annotated[
    Path | None,
    typer.Option("--results", parser=path, help="Keep the recipe's results here (table)."),
]


@commands.command(
    epilog=examples(
        "idiolect bench --list",
        "idiolect bench pfl-headline --json",
        "idiolect bench nets --only gru,vit-tiny --out nets.json",
        "idiolect bench table --jobs 4 --results results",
        "idiolect bench scale --clients 1000,10000",
        "idiolect bench pfllib-round --peer pfllib=../PFLlib --peer fedas=../FedAS",
    )
)
@with_settings("device", "dtype", "rounds")
def bench(
    name: Annotated[str | None, typer.Argument(help="Which one; all when not given.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes, random data: does it run?")
    ] = False,
    peer: Peers = None,
    peer_rounds: PeerRounds = None,
    out: Annotated[Path | None, typer.Option(parser=path, help="Also write the JSON here.")] = None,
    only: Only = None,
    clients: Clients = None,
    jobs: Jobs = None,
    results_in: ResultsIn = None,
    list_them: Annotated[bool, typer.Option("--list", help="Name the benchmarks.")] = False,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Time this machine: rounds, the price of stacking, growth with clients, other libraries."""
    from idiolect import bench as benchmarks

    known, device = benchmarks.BENCHMARKS, given["device"] or "auto"
    if list_them:
        entries = [{"name": n, "what": b.what} for n, b in known.items()]
        screen.print_entries("benchmarks", entries, as_json)
        return
    against = _checked(name, peer or [], out)
    note = " (quick: small sizes, random data)" if quick else ""
    given |= {"only": only, "clients": clients, "jobs": jobs, "results": results_in}
    options = {n: v for n, v in given.items() if v and n != "device"}
    results: list[dict[str, Any]] = []
    failed: list[str] = []

    unwritten: list[UserError] = []  # said at the end: what was measured is shown first

    def keep(*further: dict[str, Any]) -> None:
        found = [*results, *further]
        unwritten[:] = _write(out, found[0] if name else found)

    for one in [name] if name else known:
        try:
            result = benchmarks.run(one, device, quick, against, peer_rounds, SAY, keep, **options)
        except UserError as error:
            if name:
                raise
            failed.append(f"{one}: {error}")
            continue
        results.append(result)
        failed += result.get("failed", [])
        if not as_json:
            screen.print_rows(f"{one}: {result['what']}{note}", result["rows"])
        keep()
    if as_json:
        screen.print_json(results[0] if name else results)
    _end(failed, unwritten)


def _checked(name: str | None, given: Sequence[str], out: Path | None) -> dict[str, Path]:
    """The peers; one without a job in this benchmark is a mistake, and so is no place for the
    result."""
    from idiolect.bench import BENCHMARKS, peers

    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise UserError(f"cannot write {out}: --out is a file in a folder that exists")
    against = peers.parse(given)
    for one in against if name in BENCHMARKS else ():
        fitting = [n for n, b in BENCHMARKS.items() if one in b.peers]
        if name not in fitting:
            goes_with = f"--peer {one} goes with {', '.join(fitting)}"
            raise UserError(f"benchmark '{name}' has no job for {one}; {goes_with}")
    return against


def _end(failed: list[str], unwritten: list[UserError]) -> None:
    """Say what went wrong, once everything that was measured is shown."""
    for line in failed:
        print(f"error: {line}", file=sys.stderr)
    if unwritten:
        raise unwritten[0]
    if failed:
        raise typer.Exit(1)


def _write(out: Path | None, found: Any) -> list[UserError]:
    """Write the results; why that could not be done, if it could not."""
    from idiolect.core import files
    from idiolect.engine.ranks import Ranks

    if out is None or not Ranks.current().first:
        return []
    try:
        files.write_json(out, found)
    except OSError as error:
        return [UserError(f"cannot write {out}: {error.strerror}")]
    return []
