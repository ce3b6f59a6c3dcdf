"""`idiolect new` and `idiolect check`: a method, split or model of one's own."""

from pathlib import Path
from typing import Annotated

import typer

from idiolect.cli import screen
from idiolect.cli.options import Json, Out, examples
from idiolect.errors import did_you_mean

commands = typer.Typer()
LAW_BROKEN = 1  # exit code


@commands.command(
    epilog=examples(
        "idiolect new method Halfway", "idiolect new split Stripes", "idiolect new model Narrow"
    )
)
def new(
    kind: Annotated[str, typer.Argument(help="method, split or model.")],
    name: Annotated[str, typer.Argument(help="What to call the class, e.g. Halfway.")],
    out: Out = None,
) -> None:
    """Write a small working file, and its test beside it; nothing is overwritten."""
    from idiolect.cli.first_drafts import write

    for path in write(kind, name, out or Path()):
        print(path)
    file = (out or Path()) / f"{name.lower()}.py"
    tries = {
        "method": f"idiolect check {file}:{name}; idiolect run {file}:{name} --rounds 5",
        "split": f"idiolect data inspect --split {file}:{name} --clients 5",
        "model": f"idiolect run fedavg --model {file}:{name} --rounds 5",
    }
    print(f"try: {tries[kind]}")


@commands.command(epilog=examples("idiolect check my.py:MyMethod", "idiolect check fedavg --json"))
def check(
    name: Annotated[str, typer.Argument(help="Your method, file.py:Class, or one by name.")],
    as_json: Json = False,
) -> None:
    """Try a method on a small problem: whether it holds the laws that every method must hold.

    Naming a file here is permission to run it. Exit code 1 if a law does not hold.
    """
    from idiolect.conformance.laws import check as tried
    from idiolect.conformance.problem import Subject
    from idiolect.core.own_code import called, is_own
    from idiolect.methods import REGISTRY

    if not is_own(name) and name not in REGISTRY:
        raise did_you_mean(name, REGISTRY.names, "method")
    found = list(tried(Subject(name, [name] if is_own(name) else ())))
    if as_json:
        screen.print_json([vars(one) for one in found])
    else:
        told = [
            {"law": one.law, called(name): _word(one.holds), "why": one.reason} for one in found
        ]
        screen.print_rows("", told)
    if not all(one.holds for one in found):
        raise typer.Exit(LAW_BROKEN)


def _word(holds: bool) -> str:
    return "holds" if holds else "does not hold"
