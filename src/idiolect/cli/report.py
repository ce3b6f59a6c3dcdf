"""`idiolect report`: tables and one HTML page from run directories."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idiolect.cli import screen
from idiolect.cli.options import Json, examples
from idiolect.cli.options import path as as_path
from idiolect.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from idiolect.report import Run

commands = typer.Typer()


@commands.command(
    epilog=examples(
        "idiolect report runs/fedas-digits-dirichlet-seed0",
        "idiolect report runs/compare-digits-dirichlet -o report.html",
        "idiolect report runs/a runs/b --format md",
        "idiolect report runs/a runs/b --target 85",
        "idiolect report runs/a runs/b --figure accuracy.pdf",
    )
)
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", parser=as_path, help="Runs, or folders of runs."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", parser=as_path, help="File to write.")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="terminal, md, csv, latex or html.")
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(parser=as_path, help="Accuracy over rounds for a paper: .pdf, .svg or .png."),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(help="Rounds, MB and seconds until this score, in percent for accuracies."),
    ] = None,
    serif: Annotated[bool, typer.Option("--serif", help="--figure with serifs.")] = False,
    as_json: Json = False,
) -> None:
    """Tables and one self-contained HTML page from run directories, finished or not."""
    from idiolect import report as reports
    from idiolect.runs.targets import no_part_of_a_run

    if form is None:
        form = _form_of(out) if out else "terminal"
    if form not in (*reports.FORMATS, "terminal"):
        raise did_you_mean(form, (*reports.FORMATS, "terminal"), "format")
    for written in filter(None, (out, figure)):
        no_part_of_a_run(written)
    found = reports.find(paths)
    goal = None if target is None else _goal(target, found)
    if figure is not None:
        from idiolect.report.paper_plot import write_figure

        with writing(figure):
            write_figure(found, figure, serif)
        if out is None and form == "terminal" and not as_json:
            return
    if as_json:
        screen.print_json(reports.rows(found, goal))
    elif form == "terminal" and out is None:
        screen.print_table(found, goal)
    elif form == "terminal":
        raise UserError("--format terminal writes no file; leave out -o or choose md, csv or html")
    elif out is None and form != "html":
        sys.stdout.write(reports.render(found, form, target=goal))
        return
    file = out or (Path("report.html") if form == "html" else None)
    if file is not None:
        with writing(file):
            reports.write(found, file, form, target=goal)


def _form_of(out: Path) -> str:
    """What the ending of a file says."""
    from idiolect.report import ENDINGS

    if out.suffix.lower() not in ENDINGS:
        raise UserError(f"{out}: a report is written as {', '.join(ENDINGS)}; or give --format")
    return ENDINGS[out.suffix.lower()]


def _goal(target: float, found: "Sequence[Run]") -> float:
    """The target in the unit of the runs' numbers: shares are fractions there."""
    from idiolect.simulation.metrics import metric_of

    metrics = {metric.name: metric for metric in (metric_of(run.table) for run in found)}
    if len(metrics) > 1:
        raise UserError(f"--target is a score of one metric; these runs have {', '.join(metrics)}")
    [metric] = metrics.values()
    if not metric.share:
        if not math.isfinite(target):
            raise UserError(f"--target must be a number, a value of {metric.name}")
        return target
    if not 1 < target <= 100:
        raise UserError(f"--target is in percent, as {metric.name} is in the table: 85 for 85 %")
    return target / 100


@contextmanager
def writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}") from None
    print(f"report: {target}", file=sys.stderr)
