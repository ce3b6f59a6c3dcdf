"""`idiolect list`: methods, datasets, splits, models and recipes, with their options."""

from typing import Annotated, Any

import typer

from idiolect.cli import screen
from idiolect.cli.options import Json, examples
from idiolect.core.fields import describe
from idiolect.errors import did_you_mean

Entry = dict[str, Any]
commands = typer.Typer()


def methods() -> list[Entry]:
    """Every method with its paper, what stays personal and its hyperparameters."""
    from idiolect.methods import REGISTRY

    return [
        {
            "name": name,
            "what": " ".join((cls.__doc__ or "").strip().split("\n\n")[0].split()),
            "paper": cls.paper,
            "year": cls.year,
            "personal": cls.personal_part,
            "traffic": cls.traffic,
            "asynchronous": cls.asynchronous,
            "rounds_default": cls.rounds_default,
            "options": describe(cls),
        }
        for name, cls in REGISTRY.items()
    ]


def models() -> list[Entry]:
    from idiolect.models import list_models

    return list_models()


def recipes() -> list[Entry]:
    """Tables and figures of the papers that can be rerun."""
    from idiolect.papers import recipe

    found = [recipe.read(name) for name in recipe.names()]
    return [
        {
            "name": one.name,
            "what": one.title,
            "paper": recipe.PAPERS[one.paper],
            "claims": len(one.claims),
        }
        for one in found
    ]


@commands.command("list", epilog=examples("idiolect list methods", "idiolect list splits --json"))
def list_(
    kind: Annotated[str, typer.Argument(help="methods, datasets, splits, models or recipes.")],
    as_json: Json = False,
) -> None:
    """What there is to choose from, with every option."""
    from idiolect.data import list_datasets, list_splits

    kinds = {
        "methods": methods,
        "datasets": list_datasets,
        "splits": list_splits,
        "models": models,
        "recipes": recipes,
    }
    if kind not in kinds:
        raise did_you_mean(kind, kinds, "list")
    screen.print_entries(kind, kinds[kind](), as_json)
