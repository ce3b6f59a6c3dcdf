"""`idiolect data …`: which datasets are here, and how a split of one looks."""

from pathlib import Path
from typing import Annotated, Any

import typer

from idiolect.cli import screen
from idiolect.cli.options import Json, Set, examples, flags_of, path, with_settings
from idiolect.core.text import one_line

commands = typer.Typer(
    help="Datasets: what there is, where it lies, how a split looks.", no_args_is_help=True
)


@commands.command("list", epilog=examples("idiolect data list", "idiolect data list --json"))
def data_list(as_json: Json = False) -> None:
    """Every dataset, and where it was found."""
    from idiolect.data import list_datasets

    screen.print_entries("datasets", list_datasets(), as_json)


@commands.command("get", epilog=examples("idiolect data get mnist"))
def data_get(
    name: Annotated[str, typer.Argument(help="Dataset (idiolect data list).")],
    set_: Set = None,
) -> None:
    """Make sure a dataset is here and whole; fetch it from the hub where that is possible."""
    from idiolect.data import datasets
    from idiolect.runs import config as settings

    section: dict[str, Any] = {"name": name}
    for item in set_ or ():
        section |= settings.parse_set(item.removeprefix("data."))
    print(f"{name}: {datasets.get(section)}")


@commands.command(
    "inspect",
    epilog=examples(
        "idiolect data inspect mnist --split classes --clients 10 --set split.k=6",
        "idiolect data inspect readings.csv --set data.client=site --set data.label=kind",
        "idiolect data inspect digits --clients 20 --out split.png",
    ),
)
@with_settings("task", "split", "clients", "seed")
def data_inspect(
    name: Annotated[
        str, typer.Argument(help="Dataset (idiolect data list), or your own files or function.")
    ] = "digits",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", parser=path, help="Draw the split: a .html, .png or .csv file to write."
        ),
    ] = None,
    set_: Set = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """How a split looks: samples and classes of every client, and what is odd in the data."""
    from idiolect.data import describe, split_picture
    from idiolect.data.findings import findings
    from idiolect.runs import build
    from idiolect.runs import config as settings

    if out is not None:
        split_picture.check_form(out)
    flags, sets = flags_of({"data": name, **given}), set_ or ()
    allowed = settings.code_named(flags, sets)
    config = settings.resolve(None, {**flags, "method": {"name": "local"}}, sets, allowed)
    federation = build.load_federation(config, allowed)
    about = {**describe(federation), "findings": findings(federation)}
    screen.print_federation(about, as_json)
    if not as_json:
        screen.print_split(about)
        for line in about["findings"]["lines"]:
            print(one_line(line))
    if out is not None:
        split_picture.write(about, out)
        if not as_json:
            print(f"split: {out}")
