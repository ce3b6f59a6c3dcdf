"""`idiolect recipe`: a table or figure of a paper, the paper's number beside ours, and verdicts."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idiolect.cli import screen
from idiolect.cli.options import AllowCode, Json, Seeds, examples, flags_of, path, with_settings
from idiolect.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from idiolect.papers.campaign import Campaign

commands = typer.Typer()
FORMATS = ("terminal", "md", "latex", "csv")

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME…", help="Recipes (idiolect list recipes), or your own .yaml."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(help="ROW, COLUMN or ROW/COLUMN, with * and ?; repeated, all of them."),
]
Quick = Annotated[bool, typer.Option("--quick", help="Shrunk: to try it out.")]
Budget = Annotated[
    str, typer.Option(help="Time to spend, e.g. 25m, 2h or 90s; most informative cells first.")
]
Jobs = Annotated[int, typer.Option(min=1, help="Processes side by side.")]
Folder = Annotated[
    Path, typer.Option(parser=path, help="Folder of results, one folder per recipe in it.")
]
Runs = Annotated[
    Path,
    typer.Option(
        "--out", "-o", parser=path, help="Folder of run directories; they continue there."
    ),
]
All = Annotated[bool, typer.Option("--all", help="All recipes.")]
Status = Annotated[bool, typer.Option("--status", help="Run nothing; show what is there.")]
Format = Annotated[str, typer.Option("--format", help="terminal, md, latex or csv.")]


@commands.command(
    epilog=examples(
        "idiolect recipe fedas-table4 --quick",
        "idiolect recipe fedas-table3 --only fedas --only fedavg_ft/b0.1-* --seeds 0,1,2",
        "idiolect recipe fedas-table3 feddwa-table1 --budget 25m --jobs 4 --device cuda",
        "idiolect recipe fedas-table3 --format latex --status",
        "idiolect recipe --all --status",
    )
)
@with_settings("device", "dtype")
def recipe(
    names: Names = None,
    only: Only = None,
    seeds: Seeds = None,
    quick: Quick = False,
    budget: Budget = "",
    jobs: Jobs = 1,
    results: Folder = Path("results"),
    out: Runs = Path("runs/recipes"),
    all_: All = False,
    status: Status = False,
    form: Format = "terminal",
    allow_code: AllowCode = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Run what is missing of a paper's table or figure; show it beside the paper's numbers.

    Finished cells are kept and unfinished runs continue: the same command can be repeated until all
    is there. Every claim of the paper gets a verdict: holds, does not hold, not enough evidence.
    """
    from idiolect.cli.recipe_line import RecipeLine
    from idiolect.papers import recipe as recipes
    from idiolect.papers.campaign import Campaign
    from idiolect.runs.compare import parse_seeds

    if form not in FORMATS:
        raise did_you_mean(form, FORMATS, "format")
    if bool(names) == all_:
        raise UserError("give the names of recipes, or --all; `idiolect list recipes` shows them")
    chosen = [recipes.read(name) for name in (recipes.names() if all_ else names or [])]
    campaign = Campaign(
        chosen,
        results,
        out,
        quick=quick,
        seeds=None if seeds is None else parse_seeds(seeds),
        only=tuple(only or ()),
        how=flags_of(given),
        allow_code=allow_code or (),
    )
    failed = False
    if not status:
        line = RecipeLine()
        failed = bool(campaign.run(jobs, seconds(budget) if budget else None, line).failed)
        campaign.write(line.note)
    if as_json:
        screen.print_json(campaign.as_rows())
    elif all_ and status:
        screen.print_rows("", campaign.overview())
    else:
        show(campaign, form)
    if campaign.interrupted or failed:
        raise typer.Exit(130 if campaign.interrupted else 1)


def show(campaign: "Campaign", form: str) -> None:
    """Tables, verdicts and what is missing."""
    for one in campaign.parts:
        if form != "terminal":
            sys.stdout.write(one.rendered(form))
            continue
        screen.print_view(one.view(screen.console().width))
        for line in one.table.remarks:
            print(line)
        for verdict in one.verdicts:
            print(verdict.line)
        for line in one.missing_lines():
            print(line)
        if one.results.folder.exists():
            print(f"results: {one.results.folder}")


def seconds(text: str) -> float:
    """`25m`, `2h`, `1h30m`, `90s` or a number of seconds."""
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", text.strip())
    if not text.strip() or not found:
        raise UserError(f"--budget takes a time such as 25m, 2h or 90s, got '{text}'")
    hours, minutes, rest = (int(part or 0) for part in found.groups())
    return 3600.0 * hours + 60.0 * minutes + rest
