"""`idiolect compare` and `idiolect demo`, a comparison that comes with the program."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idiolect.cli import screen
from idiolect.cli.options import (
    AllowCode,
    File,
    Json,
    Out,
    Seeds,
    Set,
    examples,
    flags_of,
    with_settings,
)
from idiolect.cli.run import tell_left_out, unused
from idiolect.core.own_code import is_own, whole
from idiolect.errors import UserError

if TYPE_CHECKING:
    from idiolect.runs.compare import Plan
    from idiolect.runs.execute import Builder
    from idiolect.runs.tuning import Trial

DEMO_METHODS = ("local", "fedavg", "fedper", "feddwa", "pflego", "fedas")
DEMO_ROUNDS = 30
DEMO_SPLIT = {"name": "dirichlet", "clients": 20, "alpha": 0.2}
# The same local training for all, as the papers' own settings are for larger images; PFLEGO has
# no local SGD and gets larger steps for the same reason.
DEMO_SETS = (
    *("method.lr=0.1", "method.batch_size=16", "method.epochs=2"),
    *("pflego.beta=0.02", "pflego.rho=0.005"),
)
DEMO_ABOUT = (
    "1,797 handwritten digits (scikit-learn's) over 20 clients, each with its own mix of classes "
    f"(Dirichlet, alpha {DEMO_SPLIT['alpha']}); six methods, {DEMO_ROUNDS} rounds each."
)


commands = typer.Typer()


@commands.command(
    epilog=examples(
        "idiolect compare local fedavg fedper fedas --seeds 0,1,2",
        "idiolect compare local fedavg ditto --data wards.csv --set data.client=ward"
        " --set data.label=outcome --set data.standardize=true",
        "idiolect compare local plga lga --data mnist --stragglers 8 --out runs/stragglers",
        "idiolect compare fedavg fedas --set method.lr=0.05 --set fedas.epochs=5",
        "idiolect compare fedavg my.py:MyMethod --set MyMethod.share=0.3",
        "idiolect compare fedprox --seeds 0,1,2 --sweep mu=0.001,0.01,0.1",
        "idiolect compare local fedavg fedas --tune lr=0.01,0.03,0.1 --set split.val_share=0.2",
        "idiolect compare fedavg fedas --sweep split.alpha=0.1,0.5 --sweep participation=0.2,1",
    )
)
@with_settings()
def compare(
    methods: Annotated[list[str], typer.Argument(metavar="METHOD…", help="Methods to compare.")],
    seeds: Seeds = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="Values of a setting, e.g. mu=0.1,1 or split.alpha=0.1,1; several: a grid."
        ),
    ] = None,
    tune: Annotated[
        list[str] | None,
        typer.Option(help="Values to choose from for each method, on validation data: lr=0.01,0.1"),
    ] = None,
    as_published: Annotated[
        bool,
        typer.Option("--as-published", help="Each method's local work as in its paper."),
    ] = False,
    out: Out = None,
    set_: Set = None,
    config: File = None,
    allow_code: AllowCode = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Run several methods on the same clients; finished runs are not run again.

    All methods do the same local work (lr, epochs or steps, batch_size) unless --as-published. A
    setting for one method only is written with its name: --set fedas.lr=0.01, --sweep
    fedas.lr=0.01,0.1.
    """
    from idiolect.data.datasets import list_names
    from idiolect.runs import compare as comparison
    from idiolect.runs import config as settings
    from idiolect.runs.build import builder
    from idiolect.runs.fair_work import keeps_its_own
    from idiolect.runs.tuning import TRIALS

    flags, default, sets = flags_of(given), settings.RunConfig(), set_ or ()
    chosen = comparison.seeds_of(seeds, config, flags, sets)
    split = flags.get("split", {}).get("name", default.split["name"])
    data = flags.get("data", {}).get("name", default.data["name"])
    named = f"{data}-{split}" if data in list_names() else settings.short_name(data)
    place = out or Path("runs") / f"compare-{named}"
    if tune and sweep:
        raise UserError("--tune and --sweep contradict each other; give one of them")
    runs = place / TRIALS if tune else place
    allowed = settings.code_named(flags, sets) | {*(allow_code or ())} | {*filter(is_own, methods)}
    plan = comparison.plans(
        methods, chosen, runs, config, flags, sets, tune or sweep or (), as_published, allowed
    )
    build = builder(plan[0].config, allowed, config)
    comparison.check(plan, allowed)
    tell_left_out(config, [(item.config, item.left_out) for item in plan])
    if not as_published and not as_json and (apart := keeps_its_own([whole(n) for n in methods])):
        kept = "no local SGD, own settings kept; see samples and steps"
        print(f"{', '.join(apart)}: {kept}", file=sys.stderr)
    if tune:
        _show(_tuned(plan, place, build), place, as_json)
    else:
        _run(plan, place, as_json, build=build)


@commands.command(epilog=examples("idiolect demo", "idiolect demo --out runs/demo --seeds 0,1,2"))
def demo(out: Out = None, seeds: Seeds = "0", as_json: Json = False) -> None:
    """Real data, 20 clients with skewed classes, six methods, about a minute."""
    import torch

    from idiolect.runs import compare as comparison

    # Matrices this small lose more by handing work between threads than they gain.
    torch.set_num_threads(1)
    place = out or unused(Path("runs/demo"))
    if not as_json:
        print(DEMO_ABOUT)
    flags = {"data": {"name": "digits"}, "split": DEMO_SPLIT, "rounds": DEMO_ROUNDS}
    chosen = comparison.parse_seeds(seeds or "")
    plan = comparison.plans(DEMO_METHODS, chosen, place, flags=flags, sets=DEMO_SETS)
    _run(plan, place, as_json, title="Idiolect demo: digits, 20 clients with skewed classes")


def _tuned(plan: "list[Plan]", place: Path, build: "Builder") -> "list[Plan]":
    """The runs that were chosen on validation data, in their places."""
    from idiolect.engine.ranks import Ranks
    from idiolect.runs import tuning
    from idiolect.runs.live_line import LiveLine

    tuning.check_places(plan, place)  # a mistake is told before the data is read
    tuning.check_validation(build(plan[0].config).federation)
    progress = LiveLine()
    tuned = tuning.tune(plan, progress, build)
    if not Ranks.current().first:
        return plan
    for name, trials in tuned.items():
        best = trials[0]
        shown = _validation_score(best)
        progress.note(f"{name}: {best.told} of {len(trials)} trials, {shown} on validation samples")
    return tuning.keep_chosen(tuned, place, progress)


def _validation_score(trial: "Trial") -> str:
    """With the metric's name where it is not accuracy."""
    from idiolect.core.task import metric_named
    from idiolect.report.tables import score
    from idiolect.runs.directory import read_summary

    about = read_summary(trial.plans[0].out).get("metric", {})
    metric = metric_named(about.get("name", "accuracy"))
    if trial.validation is None:
        return "–"
    told = score(metric.sign * trial.validation, metric.share)
    return f"{told} %" if metric.share else f"{metric.name} {told}"


def _run(
    plan: "list[Plan]",
    place: Path,
    as_json: bool,
    title: str | None = None,
    build: "Builder | None" = None,
) -> None:
    from idiolect.runs import compare as comparison
    from idiolect.runs.live_line import LiveLine

    comparison.run_all(plan, LiveLine(), build)
    _show(plan, place, as_json, title)


def _show(plan: "list[Plan]", place: Path, as_json: bool, title: str | None = None) -> None:
    from idiolect import report as reports
    from idiolect.engine.ranks import Ranks
    from idiolect.runs.live_line import LiveLine

    if not Ranks.current().first:
        return
    found = reports.find([item.out for item in plan])
    page = reports.write_all(found, place, LiveLine().note, title)
    if as_json:
        screen.print_json(reports.rows(found))
        return
    screen.print_table(found)
    print(f"tables: {place / 'compare.md'}, {place / 'compare.csv'}")
    if page:
        print(f"report: {page}")
