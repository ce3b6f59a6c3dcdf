"""`idiolect list`: methods, datasets, splits, models, metrics and recipes, with their options."""

import warnings
from collections.abc import Collection
from typing import Annotated, Any

import typer

from idiolect.cli import screen
from idiolect.cli.options import Json, examples
from idiolect.core.fields import describe
from idiolect.core.own_code import called, is_own
from idiolect.errors import UserError, did_you_mean

Entry = dict[str, Any]
commands = typer.Typer()


def methods() -> list[Entry]:
    """Every method with its paper, what stays personal and its hyperparameters."""
    from idiolect.methods import REGISTRY

    return [_method(name, cls, package) for name, cls, package in REGISTRY.entries()]


def _method(name: str, cls: Any, package: str = "") -> Entry:
    return {
        "name": name,
        "what": " ".join((cls.__doc__ or "").strip().split("\n\n")[0].split()),
        "package": package,
        "paper": cls.paper,
        "year": cls.year,
        "personal": cls.personal_part,
        "traffic": cls.traffic,
        "asynchronous": cls.asynchronous,
        "rounds_default": cls.rounds_default,
        "options": describe(cls),
    }


def models() -> list[Entry]:
    from idiolect.models import list_models

    return list_models()


def metrics() -> list[Entry]:
    """What clients can be judged by, and for which tasks."""
    from idiolect.core import plugins, task

    found: dict[str, Entry] = {}
    for kind, known in task.METRICS.items():
        for name, metric in known.items():
            entry = found.setdefault(name, {**_metric(metric), "tasks": [], "package": ""})
            entry["tasks"].append(kind)
    for name, point in plugins.found(task.METRIC_GROUP).items():
        try:
            entry = _metric(task.installed_metric(name))
            found[name] = {**entry, "tasks": list(task.METRICS), "package": plugins.package(point)}
        except UserError as error:
            warnings.warn(str(error), stacklevel=2)
    return list(found.values())


def _metric(metric: Any) -> Entry:
    what = "share, shown in percent" if metric.share else "number"
    better = "lower" if metric.lower else "higher"
    return {"name": metric.name, "what": f"{what}; {better} is better", "better": better}


def own(kind: str, names: Collection[str]) -> list[Entry]:
    """Code of the user's own as it would be listed; naming it here is permission to load it."""
    from idiolect.data.splits.base import Split
    from idiolect.methods import REGISTRY

    if kind == "methods":
        return [_method(called(name), REGISTRY.admit(name, names)) for name in names]
    if kind == "splits":
        found = [(name, Split.registry.admit(name, names)) for name in names]
        return [{**cls.about(), "name": called(name), "package": ""} for name, cls in found]
    raise UserError(f"idiolect list {kind}: own code is listed for methods and splits")


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


@commands.command(
    "list",
    epilog=examples(
        "idiolect list methods", "idiolect list splits --json", "idiolect list methods my.py:Mine"
    ),
)
def list_(
    kind: Annotated[
        str, typer.Argument(help="methods, datasets, splits, models, metrics, recipes.")
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]…", help="Only these; your own as file.py:Name."),
    ] = None,
    as_json: Json = False,
) -> None:
    """What there is to choose from, with every option and the package that brings it."""
    from idiolect.data import list_datasets, list_splits

    kinds = {
        "methods": methods,
        "datasets": list_datasets,
        "splits": list_splits,
        "models": models,
        "metrics": metrics,
        "recipes": recipes,
    }
    if kind not in kinds:
        raise did_you_mean(kind, kinds, "list")
    ours = [name for name in names or () if is_own(name)]
    entries = own(kind, ours) if ours else []
    if names is None or len(ours) < len(names):
        known = {entry["name"]: entry for entry in kinds[kind]()}
        for name in names or ():
            if name not in known and name not in ours:
                raise did_you_mean(name, known, kind.removesuffix("s"))
        entries += [known[name] for name in names or known if name in known]
    screen.print_entries(kind, entries, as_json)
