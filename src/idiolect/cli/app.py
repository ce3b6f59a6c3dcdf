"""The command line: one module per group of commands, put together here.

Heavy imports wait until a command needs them, so that --help is quick.
"""

import inspect
import os
import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from idiolect.cli import (
    advise,
    after_training,
    bench,
    catalogue,
    compare,
    data,
    deploy,
    extend,
    failures,
    recipe,
    report,
    run,
    status,
    ui,
)
from idiolect.cli.options import examples


class _Commands(TyperGroup):
    """All commands; `failures` turns what goes wrong in one of them into a line."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **_: Any
    ) -> Any:
        words = list(sys.argv[1:] if args is None else args)

        def work() -> None:
            with self.make_context(prog_name or "idiolect", words) as context, _joined():
                self.invoke(context)

        sys.exit(failures.exit_code(work))


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


def _version(asked: bool) -> None:
    if asked:
        from idiolect import __version__

        print(f"idiolect {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Personalized federated learning: many clients, one good model each."""


for group in (
    *(run, compare, advise, recipe, report, after_training),
    *(status, ui, bench, catalogue, extend, deploy),
):
    for command in group.commands.registered_commands:
        # rich keeps the line ends of a docstring within its paragraphs
        command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(command.callback) or "")
    app.registered_commands += group.commands.registered_commands
app.add_typer(data.commands, name="data")


def main() -> None:
    """The program, once it is imported."""
    app(prog_name="idiolect")
