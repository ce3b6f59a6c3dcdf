"""The command line. Heavy imports wait until a command needs them, so that --help is quick."""

import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from idiolect.cli import deploy as deploy_cli
from idiolect.cli import screen
from idiolect.cli.data import data_app
from idiolect.cli.options import (
    CheckpointEvery,
    Clients,
    Data,
    Device,
    Dtype,
    Engine,
    EvalEvery,
    File,
    Init,
    Json,
    Keep,
    Model,
    Out,
    Participation,
    Protocol,
    Rounds,
    SaveModels,
    Schedule,
    Seed,
    Set,
    Split,
    Stragglers,
    Sweep,
    examples,
    flags_of,
)
from idiolect.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from idiolect.runs.compare import Plan


FULL = (
    "error: the GPU's memory is full (what is finished is kept); end other programs on it, "
    "lower method.batch_size or --participation, or take a smaller model"
)


class _Commands(TyperGroup):
    """A user's mistake is one line and exit code 2; a stopped run is one line and 130, a full GPU
    one line and 1."""

    def invoke(self, ctx: Any) -> Any:
        warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
        try:
            with _joined():
                return super().invoke(ctx)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
            raise typer.Exit(130) from None
        except Exception as error:  # by name: their modules may not be imported yet
            known = {"Interrupted": (str(error), 130), "OutOfMemoryError": (FULL, 1)}
            if type(error).__name__ not in known:
                raise
            line, code = known[type(error).__name__]
            print(line, file=sys.stderr)
            raise typer.Exit(code) from None


def _joined() -> AbstractContextManager[Any]:
    """The processes of torchrun, where it started this one."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return nullcontext()
    from idiolect.engine.ranks import joined

    return joined()


app = typer.Typer(
    name="idiolect",
    cls=_Commands,
    help="Personalized federated learning: many clients, one good model each.",
    epilog=examples("idiolect demo", "idiolect compare local fedavg fedas --seeds 0,1,2"),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_app, name="data")


@app.command(
    epilog=examples(
        "idiolect run fedas --data cifar10 --split dirichlet --clients 20 --set split.alpha=0.1",
        "idiolect run pflego --rounds 100 --participation 0.2 --save-models best",
        "idiolect run plga --data mnist --stragglers 8 --set method.lr=0.001 --out runs/plga",
        "torchrun --nproc-per-node 2 -m idiolect run fedas --data cifar10",
    )
)
def run(
    method: Annotated[str, typer.Argument(help="Method (idiolect list methods).")],
    data: Data = None,
    split: Split = None,
    clients: Clients = None,
    model: Model = None,
    rounds: Rounds = None,
    seed: Seed = None,
    out: Out = None,
    set_: Set = None,
    config: File = None,
    participation: Participation = None,
    stragglers: Stragglers = None,
    schedule: Schedule = None,
    init: Init = None,
    save_models: SaveModels = None,
    engine: Engine = None,
    device: Device = None,
    dtype: Dtype = None,
    keep: Keep = None,
    eval_every: EvalEvery = None,
    protocol: Protocol = None,
    checkpoint_every: CheckpointEvery = None,
    as_json: Json = False,
) -> None:
    """Run one method; everything goes into one directory.

    Started by torchrun, the processes share the clients of each round, one GPU each.
    """
    given = {k: v for k, v in locals().items() if k not in _NOT_SETTINGS}
    from idiolect.cli.progress import LiveLine
    from idiolect.runs import config as settings
    from idiolect.runs import execute as runs

    flags = {**flags_of(given), "method": {"name": method}}
    resolved = settings.resolve(config, flags, set_ or ())
    place = out or _free(Path("runs") / _run_name(resolved))
    summary = runs.execute(resolved, place, progress=LiveLine())
    _finish(place, summary, as_json)


_NOT_SETTINGS = ("method", "methods", "out", "set_", "config", "as_json", "seeds", "sweep")


@app.command(
    epilog=examples(
        "idiolect resume runs/fedas-digits-dirichlet-seed0", "idiolect resume runs/plga --json"
    )
)
def resume(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of an unfinished run.")],
    as_json: Json = False,
) -> None:
    """Continue an unfinished run from its last checkpoint, as if it had never stopped."""
    from idiolect.cli.progress import LiveLine
    from idiolect.runs import execute as runs

    config = runs.read_config(path)
    if runs.standing(path, config) == "finished":
        print(f"{path} is already finished", file=sys.stderr)
    summary = runs.execute(config, path, resume=True, progress=LiveLine())
    _finish(path, summary, as_json)


@app.command(
    epilog=examples(
        "idiolect compare local fedavg fedper fedas --seeds 0,1,2",
        "idiolect compare local plga lga --data mnist --stragglers 8 --out runs/stragglers",
        "idiolect compare fedavg fedas --set method.lr=0.05 --set fedas.epochs=5",
        "idiolect compare fedprox --seeds 0,1,2 --sweep mu=0.001,0.01,0.1",
    )
)
def compare(
    methods: Annotated[list[str], typer.Argument(metavar="METHOD…", help="Methods to compare.")],
    data: Data = None,
    split: Split = None,
    clients: Clients = None,
    model: Model = None,
    rounds: Rounds = None,
    seeds: Annotated[str, typer.Option(help="Seeds, e.g. 0,1,2.")] = "",
    seed: Seed = None,
    out: Out = None,
    set_: Set = None,
    sweep: Sweep = None,
    config: File = None,
    participation: Participation = None,
    stragglers: Stragglers = None,
    schedule: Schedule = None,
    init: Init = None,
    save_models: SaveModels = None,
    engine: Engine = None,
    device: Device = None,
    dtype: Dtype = None,
    keep: Keep = None,
    eval_every: EvalEvery = None,
    protocol: Protocol = None,
    checkpoint_every: CheckpointEvery = None,
    as_json: Json = False,
) -> None:
    """Run several methods on the same clients; finished runs are not run again.

    A setting for one method only is written with its name: --set fedas.lr=0.01, --sweep
    fedas.lr=0.01,0.1.
    """
    given = {k: v for k, v in locals().items() if k not in _NOT_SETTINGS}
    from idiolect.runs import compare as comparison

    flags = flags_of(given)
    chosen = comparison.parse_seeds(seeds) if seeds else [flags.get("seed", 0)]
    split_name = flags.get("split", {}).get("name", "dirichlet")
    data_name = flags.get("data", {}).get("name", "digits")
    place = out or Path("runs") / f"compare-{data_name}-{split_name}"
    plan = comparison.plans(methods, chosen, place, config, flags, set_ or (), sweep or ())
    _compare(plan, place, as_json)


@app.command(epilog=examples("idiolect demo", "idiolect demo --out runs/demo --seeds 0,1,2"))
def demo(
    out: Out = None,
    seeds: Annotated[str, typer.Option(help="Seeds, e.g. 0,1,2.")] = "0",
    as_json: Json = False,
) -> None:
    """Real data, 20 clients with skewed classes, six methods, about a minute."""
    import torch

    from idiolect.runs import compare as comparison

    # Matrices this small lose more by handing work between threads than they gain.
    torch.set_num_threads(1)
    place = out or _free(Path("runs/demo"))
    if not as_json:
        print(comparison.DEMO_ABOUT)
    plan = comparison.demo(place, comparison.parse_seeds(seeds))
    _compare(plan, place, as_json, title="Idiolect demo: digits, 20 clients with skewed classes")


@app.command(
    epilog=examples(
        "idiolect report runs/fedas-digits-dirichlet-seed0",
        "idiolect report runs/compare-digits-dirichlet -o report.html",
        "idiolect report runs/a runs/b --format md",
    )
)
def report(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Runs, or folders of runs.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write.")] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="terminal, md, csv, latex or html.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Tables and one self-contained HTML page from run directories, finished or not."""
    from idiolect import report as reports

    if form is None:
        endings = {".html": "html", ".htm": "html", ".md": "md", ".csv": "csv", ".tex": "latex"}
        form = endings.get(out.suffix.lower(), "html") if out else "terminal"
    if form not in (*reports.FORMATS, "terminal"):
        raise did_you_mean(form, (*reports.FORMATS, "terminal"), "format")
    found = reports.find(paths)
    if as_json:
        screen.print_json(reports.rows(found))
    elif form == "terminal" and out is None:
        screen.print_table(found)
    elif form == "terminal":
        raise UserError("--format terminal writes no file; leave out -o or choose md, csv or html")
    elif out is None and form != "html":
        sys.stdout.write(reports.render(found, form))
        return
    target = out or (Path("report.html") if form == "html" else None)
    if target is not None:
        try:
            reports.write(found, target, form)
        except OSError as error:
            raise UserError(f"cannot write {target}: {error.strerror}") from None
        print(f"report: {target}", file=sys.stderr)


@app.command(
    epilog=examples(
        "idiolect bench --list",
        "idiolect bench pfl-headline --json",
        "idiolect bench pfllib-round --peer pfllib=../PFLlib --peer fedas=../FedAS",
    )
)
def bench(
    name: Annotated[str | None, typer.Argument(help="Which one; all when not given.")] = None,
    device: Device = "auto",
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes, random data: does it run?")
    ] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="Also time its own code: pfllib=PATH, fedas=PATH or pfl=PATH."),
    ] = None,
    peer_rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of a peer, after a first one.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON here.")] = None,
    list_them: Annotated[bool, typer.Option("--list", help="Name the benchmarks.")] = False,
    as_json: Json = False,
) -> None:
    """Time this machine: rounds, the price of stacking, growth with clients, other libraries."""
    from idiolect import bench as benchmarks
    from idiolect.core import files
    from idiolect.engine.ranks import Ranks

    known = benchmarks.BENCHMARKS
    if list_them:
        entries = [{"name": n, "what": b.what} for n, b in known.items()]
        screen.print_entries("benchmarks", entries, as_json)
        return
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise UserError(f"cannot write {out}: --out is a file in a folder that exists")
    against = benchmarks.peers.parse(peer or [])
    for one in against:
        fitting = [n for n, b in known.items() if one in b.peers]
        if name in known and name not in fitting:
            raise UserError(
                f"benchmark '{name}' has no job for {one}; --peer {one} goes with "
                f"{', '.join(fitting)}"
            )
    results: list[dict[str, Any]] = []
    failed: list[str] = []

    def keep(*further: dict[str, Any]) -> None:
        if out is None or not Ranks.current().first:
            return
        found = [*results, *further]
        try:
            files.write_json(out, found[0] if name else found)
        except OSError as error:
            raise UserError(f"cannot write {out}: {error.strerror}") from None

    for one in [name] if name else known:
        try:
            result = benchmarks.run(
                one, device or "auto", quick, against, peer_rounds, _progress, keep
            )
        except UserError as error:
            if name:
                raise
            failed.append(f"{one}: {error}")
            continue
        results.append(result)
        failed += result.get("failed", [])
        if not as_json:
            note = " (quick: small sizes, random data)" if quick else ""
            screen.print_rows(f"{one}: {result['what']}{note}", result["rows"])
        keep()
    if as_json:
        screen.print_json(results[0] if name else results)
    for line in failed:
        print(f"error: {line}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)


def _progress(line: str) -> None:
    print(line, file=sys.stderr)


@app.command("list", epilog=examples("idiolect list methods", "idiolect list splits --json"))
def list_(
    kind: Annotated[str, typer.Argument(help="methods, datasets, splits, models or recipes.")],
    as_json: Json = False,
) -> None:
    """What there is to choose from, with every option."""
    from idiolect.cli import catalogue

    if kind not in catalogue.KINDS:
        raise did_you_mean(kind, catalogue.KINDS, "list")
    screen.print_entries(kind, catalogue.KINDS[kind](), as_json)


def _compare(plan: "list[Plan]", place: Path, as_json: bool, title: str | None = None) -> None:
    from idiolect import report as reports
    from idiolect.cli.progress import LiveLine
    from idiolect.engine.ranks import Ranks
    from idiolect.runs import compare as comparison

    progress = LiveLine()
    comparison.run_all(plan, progress)
    if not Ranks.current().first:
        return
    found = [reports.load(item.out) for item in plan]
    page = reports.write_all(found, place, progress.note, title)
    if as_json:
        screen.print_json(reports.rows(found))
        return
    screen.print_table(found)
    print(f"tables: {place / 'compare.md'}, {place / 'compare.csv'}")
    if page:
        print(f"report: {page}")


def _finish(place: Path, summary: dict[str, Any], as_json: bool) -> None:
    from idiolect.engine.ranks import Ranks

    if not Ranks.current().first:
        return
    if as_json:
        screen.print_json(summary)
        return
    from idiolect import report as reports

    screen.print_table([reports.load(place)])
    number = summary["protocol"]
    if number["name"] != "default" and number["value"] is not None:
        print(f"protocol {number['name']}: {100 * number['value']:.2f} % ({number['what']})")
    print(f"run: {place}")


def _run_name(config: Mapping[str, Any]) -> str:
    method, data, split = (config[key]["name"] for key in ("method", "data", "split"))
    return f"{method}-{data}-{split}-seed{config['seed']}"


def _free(path: Path) -> Path:
    """The path itself, or with -2, -3, … the first that is not taken."""

    def look() -> str:
        number, free = 1, path
        while free.exists():
            number += 1
            free = path.with_name(f"{path.name}-{number}")
        return str(free)

    from idiolect.engine.ranks import Ranks

    return Path(Ranks.current().agree(look))


deploy_cli.register(app)


def main() -> None:
    """Entry point of the `idiolect` program."""
    app(prog_name="idiolect")


if __name__ == "__main__":
    main()
