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
from idiolect.core.own_code import is_own

if TYPE_CHECKING:
    from idiolect.runs.tournament import Tournament

commands = typer.Typer()

WIDEST = 100  # columns of the table; the words below it say the rest


@commands.command(
    epilog=examples(
        "idiolect advise --data digits --split dirichlet --clients 20 --set split.alpha=0.1",
        "idiolect advise --data wards.csv --set data.client=ward --set data.label=outcome",
        "idiolect advise --data femnist --split natural --clients 30 --model mlp --rounds 40",
        "idiolect advise --methods fedper,ditto,my.py:MyMethod --seeds 0,1,2 --json",
    )
)
@with_settings()
def advise(
    methods: Annotated[
        str,
        typer.Option(
            help="Methods that take part, e.g. fedper,ditto; local and fedavg always do. Default: "
            "a short list of different kinds."
        ),
    ] = "",
    seeds: Annotated[str, typer.Option(help="Seeds. Default: 0,1.")] = "",
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
    from idiolect.cli.live_line import LiveLine
    from idiolect.engine.ranks import Ranks
    from idiolect.runs import config as settings
    from idiolect.runs import tournament as contest

    flags, sets, names = flags_of(given), set_ or (), contest.methods_of(methods)
    chosen = contest.seeds_of(seeds, config, flags, sets)
    data = flags.get("data", {}).get("name", settings.RunConfig().data["name"])
    place = out or Path("runs") / f"advise-{settings.short_name(data)}"
    allowed = settings.code_named(flags, sets) | {*(allow_code or ())} | {*filter(is_own, names)}
    held = contest.tournament(names, chosen, place, config, flags, sets, allowed)
    held.run(LiveLine())
    if Ranks.current().first:
        _show(held, place, as_json)


def _show(held: "Tournament", place: Path, as_json: bool) -> None:
    from dataclasses import asdict

    from rich.text import Text

    from idiolect import report as reports
    from idiolect.core import files
    from idiolect.data.heterogeneity import heterogeneity
    from idiolect.report import advice_words as words
    from idiolect.report.advice import Advice

    advice = Advice([reports.load(item.out) for item in held.plans])
    differ = heterogeneity(held.federation)
    measured = reports.load(held.probe.out).summary.get("measured", {})
    cosines = measured.get("gradient_similarity", {})
    alike = {layer: value for layer, value in cosines.items() if value is not None}
    lines = [words.difference_told(differ), words.updates_told(alike), *words.lines(advice)]
    about = {
        **advice.as_dict(),
        "heterogeneity": {**asdict(differ), "gradient_similarity": alike},
        "left_out": held.left_out,
        "words": lines,
    }
    files.write_json(place / "advice.json", about)
    if as_json:
        screen.print_json(about)
        return
    screen.print_view(reports.terminal(advice.rows, min(WIDEST, screen.console().width)))
    print("(all scores are on validation samples; the test samples decide nothing)\n")
    for line in lines:
        screen.print_view(Text(line))
    print(f"advice: {place / 'advice.json'}")
    file = advice.chosen.runs[0].path / "config.yaml"
    print(f"its settings: {file}; with --set split.val_share=0 it trains on all training samples")
