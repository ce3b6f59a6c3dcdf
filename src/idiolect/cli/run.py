"""`idiolect run` and `idiolect resume`."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any

import typer

from idiolect.cli import screen
from idiolect.cli.options import AllowCode, File, Json, Out, Set, examples, flags_of, with_settings
from idiolect.cli.options import path as as_path
from idiolect.cli.ui import page_beside
from idiolect.core.own_code import called
from idiolect.core.text import one_line

commands = typer.Typer()


@commands.command(
    epilog=examples(
        "idiolect run fedas --data cifar10 --split dirichlet --clients 20 --set split.alpha=0.1",
        "idiolect run pflego --rounds 100 --participation 0.2 --save-models best",
        "idiolect run plga --data mnist --stragglers 8 --set method.lr=0.001 --out runs/plga",
        "idiolect run my.py:MyMethod --split my.py:my_split --set method.lr=0.05",
        "torchrun --nproc-per-node 2 -m idiolect run fedas --data cifar10",
    )
)
@with_settings()
def run(
    method: Annotated[str, typer.Argument(help="Method (idiolect list methods) or file.py:Class.")],
    out: Out = None,
    set_: Set = None,
    config: File = None,
    allow_code: AllowCode = None,
    as_json: Json = False,
    ui: Annotated[bool, typer.Option("--ui", help="Open the live page beside the run.")] = False,
    **given: Any,
) -> None:
    """Run one method; everything goes into one directory.

    Started by torchrun, the processes share the clients of each round, one GPU each.
    """
    from idiolect.engine.ranks import Ranks
    from idiolect.runs import config as settings
    from idiolect.runs.build import builder
    from idiolect.runs.execute import execute
    from idiolect.runs.live_line import LiveLine

    flags, sets = {**flags_of(given), "method": {"name": method}}, set_ or ()
    allowed = settings.code_named(flags, sets) | {*(allow_code or ())}
    resolved = settings.resolve(config, flags, sets, allowed)
    tell_what_it_leaves_out(resolved, config, flags, sets)
    build = builder(resolved, allowed, config)
    place = out or unused(Path("runs") / _run_name(resolved))
    beside = page_beside(place) if ui and Ranks.current().first else nullcontext()
    with beside:
        done = execute(resolved, place, progress=LiveLine(), build=build)
    show(place, done, as_json)


@commands.command(
    epilog=examples(
        "idiolect resume runs/fedas-digits-dirichlet-seed0", "idiolect resume runs/plga --json"
    )
)
def resume(
    path: Annotated[
        Path,
        typer.Argument(metavar="RUN", parser=as_path, help="Directory of a run."),
    ],
    from_start: Annotated[
        bool,
        typer.Option("--from-start", help="Begin at round 0; what was recorded is put aside."),
    ] = False,
    allow_code: AllowCode = None,
    as_json: Json = False,
) -> None:
    """Continue an unfinished run from its last checkpoint, as if it had never stopped."""
    from idiolect.runs import config as settings
    from idiolect.runs import directory, seal
    from idiolect.runs.build import builder
    from idiolect.runs.execute import execute
    from idiolect.runs.live_line import LiveLine

    config = directory.read_config(path)
    allowed = seal.approved(path, config) | {*(allow_code or ())}
    if seal.read(path) is None:  # else any change of it is found by the seal
        settings.check(config, path / "config.yaml", allowed)
    if directory.state(path, config) == "finished" and not from_start:
        print(f"{path} is already finished", file=sys.stderr)
    build = builder(config, allowed, path)
    done = execute(
        config, path, resume=True, progress=LiveLine(), build=build, from_start=from_start
    )
    show(path, done, as_json)


def tell_left_out(
    file: Path | None, runs: Sequence[tuple[Mapping[str, Any], Mapping[str, Sequence[str]]]]
) -> None:
    """A warning where a settings file has options of one method (dataset, split, network) that mean
    nothing to another: `runs` are resolved settings, and what they leave out of the file."""
    from idiolect.engine.ranks import Ranks
    from idiolect.runs.config import read_yaml

    said = {} if file is None or not Ranks.current().first else read_yaml(file)
    for section in said:
        alike: dict[str, dict[str, None]] = {}
        for made, left in runs:
            if keys := left.get(section):
                alike.setdefault(", ".join(keys), {})[called(made[section]["name"])] = None
        if alike:
            of = one_line(called(str(said[section]["name"])))
            told = "; ".join(f"for {', '.join(names)}: {keys}" for keys, names in alike.items())
            print(
                f"warning: {file} has settings of {of}; left out {one_line(told)} (give them with "
                f"--set {section}.KEY=…)",
                file=sys.stderr,
            )


def tell_what_it_leaves_out(
    made: Mapping[str, Any], file: Path | None, flags: Mapping[str, Any], sets: Sequence[str]
) -> None:
    """The same for one run."""
    from idiolect.runs.config import parse_set, read_yaml
    from idiolect.runs.left_out import left_out

    if file is not None:
        above = [flags, *map(parse_set, sets)]
        tell_left_out(file, [(made, left_out(read_yaml(file), above, dict(made)))])


def unused(path: Path) -> Path:
    """The path itself, or with -2, -3, … the first that is not taken."""
    from idiolect.engine.ranks import Ranks

    paths = chain([path], (path.with_name(f"{path.name}-{number}") for number in count(2)))
    return Path(Ranks.current().agree(lambda: str(next(p for p in paths if not p.exists()))))


def show(place: Path, summary: dict[str, Any], as_json: bool) -> None:
    """The end of a run: its row of the comparison table, or its summary as JSON."""
    from idiolect.engine.ranks import Ranks

    if not Ranks.current().first:
        return
    if as_json:
        screen.print_json(summary)
        return
    from idiolect import report as reports
    from idiolect.core.task import metric_named

    screen.print_table(reports.find([place]))
    number = summary["protocol"]
    if number["name"] != "default" and number["value"] is not None:
        name = summary.get("metric", {}).get("name", "accuracy")
        share = metric_named(name).share
        value = f"{100 * number['value']:.2f} %" if share else f"{name} {number['value']:.4g}"
        print(f"protocol {number['name']}: {value} ({number['what']})")
    print(f"run: {place}")


def _run_name(config: Mapping[str, Any]) -> str:
    from idiolect.runs.config import short_name

    method, data, split = (short_name(config[key]["name"]) for key in ("method", "data", "split"))
    return f"{method}-{data}-{split}-seed{config['seed']}"
