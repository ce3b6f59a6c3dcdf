"""The command line: one module per group of commands, put together here.

Heavy imports wait until a command needs them, so that --help is quick.
"""

import os
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import typer
from typer.core import TyperGroup

from idiolect.cli import bench, catalogue, compare, data, deploy, recipe, report, run
from idiolect.cli.options import examples
from idiolect.errors import UserError

GPU_MEMORY_FULL = (
    "error: the GPU's memory is full (what is finished is kept); end other programs on it, "
    "lower method.batch_size or --participation, or take a smaller model"
)


class _Commands(TyperGroup):
    """A user's mistake is one line and exit code 2; a stopped run is one line and 130, a full GPU
    one line and 1."""

    def invoke(self, ctx: Any) -> Any:
        said: set[str] = set()

        def show(message: Warning | str, *_: Any, **__: Any) -> None:
            if str(message) not in said:  # runs of a comparison share most of their settings
                said.add(str(message))
                print(f"warning: {message}", file=sys.stderr)

        try:
            with warnings.catch_warnings(), _joined():
                warnings.showwarning = show
                return super().invoke(ctx)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
            raise typer.Exit(130) from None
        except Exception as error:  # by name: their modules may not be imported yet
            known = {"Interrupted": (str(error), 130), "OutOfMemoryError": (GPU_MEMORY_FULL, 1)}
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
for group in (run, compare, recipe, report, bench, catalogue, deploy):
    app.registered_commands += group.commands.registered_commands
app.add_typer(data.commands, name="data")


def main() -> None:
    """Entry point of the `idiolect` program."""
    app(prog_name="idiolect")


if __name__ == "__main__":
    main()
