"""`idiolect advise`: which method suits these clients."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idiolect.cli import screen
from idiolect.cli.options import (
    AllowCode,
    File,
    Json,
    Out,
    Set,
    examples,
    flags_of,
    with_settings,
)
from idiolect.cli.run import tell_left_out
from idiolect.core.own_code import is_own

if TYPE_CHECKING:
    from idiolect.runs.tournament import Tournament

commands = typer.Typer()

WIDEST = 100  # columns of the table; the words below it say the rest


@commands.command(
    epilog=examples(
        "idiolect advise --data digits --clients 20 --set split.alpha=0.1 --set method.lr=0.1",
        "idiolect advise --data wards.csv --set data.client=ward --set data.label=outcome"
        " --set data.standardize=true --set method.lr=0.1",
        "idiolect advise --data femnist --split natural --clients 30 --model mlp --rounds 40",
        "idiolect advise --methods fedper,ditto,my.py:MyMethod --seeds 0,1,2 --json",
    )
)
@with_settings(
    told={
        "rounds": "Rounds of the tournament. Default: 40.",
        "eval_every": "Rounds from one evaluation to the next. Default: a quarter of all.",
    }
)
def advise(
    methods: Annotated[
        str,
        typer.Option(
            help="Methods that take part, e.g. fedper,ditto; local and fedavg always do. Default: "
            "a short list of different kinds."
        ),
    ] = "",
    seeds: Annotated[str | None, typer.Option(help="Seeds. Default: 0,1.")] = None,
    out: Out = None,
    set_: Set = None,
    config: File = None,
    allow_code: AllowCode = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Say which method suits these clients: who gains, who is harmed, the cost, and how sure.

    Measures how clients differ, and runs a short tournament (40 rounds unless --rounds) with the
    same local work for all. Only validation samples decide; clients without any keep a quarter
    of their training samples for it. Finished runs are not run again.
    """
    from idiolect.engine.ranks import Ranks
    from idiolect.runs import config as settings
    from idiolect.runs import tournament as contest
    from idiolect.runs.live_line import LiveLine

    flags, sets, names = flags_of(given), set_ or (), contest.methods_of(methods)
    chosen = contest.seeds_of(seeds, config, flags, sets)
    data = flags.get("data", {}).get("name", settings.RunConfig().data["name"])
    place = out or Path("runs") / f"advise-{settings.short_name(data)}"
    allowed = settings.code_named(flags, sets) | {*(allow_code or ())} | {*filter(is_own, names)}
    held = contest.tournament(names, chosen, place, config, flags, sets, allowed)
    tell_left_out(config, [(item.config, item.left_out) for item in held.plans])
    held.run(LiveLine())
    if Ranks.current().first:
        _show(held, place, as_json)


def _show(held: "Tournament", place: Path, as_json: bool) -> None:
    from rich.text import Text

    from idiolect import report as reports
    from idiolect.report.advised import Advised

    *runs, probe = reports.find([item.out for item in (*held.plans, held.probe)])
    advised = Advised.of(runs, probe, held.federation, held.left_out)
    file = advised.write(place)
    if as_json:
        screen.print_json(advised.as_dict())
        return
    screen.print_view(reports.terminal(advised.rows, min(WIDEST, screen.console().width)))
    print("(all scores are on validation samples; the test samples decide nothing)\n")
    for line in advised.words:
        screen.print_view(Text(line))
    print(f"advice: {file}")
    settings = advised.advice.chosen.runs[0].path / "config.yaml"
    print(
        f"its settings: {settings}; with --set split.val_share=0 it trains on all training samples"
    )
