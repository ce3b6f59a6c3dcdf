"""`idiolect list`: methods, datasets, splits, models and recipes, with their options."""

from collections.abc import Callable
from importlib.resources import files
from typing import Annotated, Any

import typer
import yaml

from idiolect.cli import screen
from idiolect.cli.options import Json, examples
from idiolect.core.fields import describe
from idiolect.errors import did_you_mean

Entry = dict[str, Any]


def methods() -> list[Entry]:
    """Every method with its paper, what stays personal and its hyperparameters."""
    from idiolect.methods import REGISTRY

    return [
        {
            "name": name,
            "what": _first_sentence(cls),
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


def datasets() -> list[Entry]:
    from idiolect.data import list_datasets

    return list_datasets()


def splits() -> list[Entry]:
    from idiolect.data import list_splits

    return list_splits()


def models() -> list[Entry]:
    from idiolect.models import list_models

    return list_models()


def recipes() -> list[Entry]:
    """Tables and figures of the papers that can be rerun."""
    folder = files("idiolect").joinpath("recipes")
    found = []
    for file in sorted(folder.iterdir(), key=lambda f: f.name) if folder.is_dir() else ():
        if file.name.endswith(".yaml"):
            recipe = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
            what = " ".join(str(recipe.get("title", recipe.get("what", ""))).split())
            found.append({"name": file.name.removesuffix(".yaml"), "what": what})
    return found


KINDS: dict[str, Callable[[], list[Entry]]] = {
    "methods": methods,
    "datasets": datasets,
    "splits": splits,
    "models": models,
    "recipes": recipes,
}


def _first_sentence(cls: type) -> str:
    paragraph = (cls.__doc__ or "").strip().split("\n\n")[0]
    return " ".join(paragraph.split())


def register(app: typer.Typer) -> None:
    """Add `list` to the command line."""
    app.command("list", epilog=examples("idiolect list methods", "idiolect list splits --json"))(
        list_
    )


def list_(
    kind: Annotated[str, typer.Argument(help="methods, datasets, splits, models or recipes.")],
    as_json: Json = False,
) -> None:
    """What there is to choose from, with every option."""
    if kind not in KINDS:
        raise did_you_mean(kind, KINDS, "list")
    screen.print_entries(kind, KINDS[kind](), as_json)
