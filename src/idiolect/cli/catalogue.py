"""What there is: methods, datasets, splits, models and recipes, as plain values for list."""

import dataclasses
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import yaml

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
            "options": [
                {
                    "name": field.name,
                    "type": str(field.type),
                    "default": _default(field),
                    "doc": field.metadata.get("doc", ""),
                }
                for field in dataclasses.fields(cls)
            ],
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

    return [
        {"name": entry["name"], "what": entry["doc"], "options": entry["fields"]}
        for entry in list_models()
    ]


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


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None
