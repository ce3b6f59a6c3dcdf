"""The runs of a recipe: one for every row, column and seed, as resolved settings."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from typing import Any

from idiolect.core import own_code
from idiolect.errors import UserError, did_you_mean
from idiolect.papers.recipe import CellSettings, Recipe, RecipeColumn, RecipeRow
from idiolect.papers.recipe_checks import as_tuple
from idiolect.runs import config as settings
from idiolect.runs.config import Config
from idiolect.simulation.protocols import protocol

# Where and how a run computes; it is recorded with a cell and is no part of what the cell is.
CIRCUMSTANCES = ("keep", "log", "device", "dtype", "engine", "checkpoint_every", "save_models")
WAITING = "waiting for tuning"
VAL_SHARE = 0.2  # of every client's training samples: what trials keep for validation
Chosen = Mapping[tuple[str, str], Mapping[str, Any] | str]  # values, or why there are none


@dataclass(frozen=True)
class Cell:
    """One run of a recipe. `broken` says why it cannot be run; `point` has the values of a trial,
    which is a run that only helps to choose the settings of the cell."""

    row: str
    column: str
    seed: int
    config: Config
    broken: str = ""
    point: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return " ".join([f"{self.row}/{self.column}", *told(self.point)])

    @property
    def name(self) -> str:
        return f"{self.label} seed {self.seed}"

    @property
    def waiting(self) -> bool:
        return self.broken == WAITING


def told(point: Mapping[str, Any]) -> list[str]:
    """The values of a trial as people read them: `lr=0.01`."""
    return [f"{key.removeprefix('method.')}={value}" for key, value in point.items()]


def cells(
    recipe: Recipe,
    seeds: Sequence[int] | None = None,
    quick: bool = False,
    only: Sequence[str] = (),
    how: Mapping[str, Any] | None = None,
    chosen: Chosen | None = None,
) -> list[Cell]:
    """All cells, or those that `only` names; `how`: settings such as device and dtype. `chosen` has
    the values of tuned rows by row and column; without them their cells are waiting."""
    seeds = planned_seeds(recipe, quick) if seeds is None else seeds
    recipe = recipe.shrunk() if quick else recipe
    found = []
    for r, c in _places(recipe, only):
        values = (chosen or {}).get((r.id, c.id), WAITING) if r.tune else {}
        over, why_not = ({}, values) if isinstance(values, str) else (values, "")
        cell = _cell(recipe, r, c, seeds[0], quick, {**(how or {}), **over}) if seeds else None
        if cell is not None and why_not and not cell.broken:
            cell = replace(cell, broken=why_not)
        found += [_of_seed(cell, seed) for seed in seeds if cell is not None]
    return found


def trials(
    recipe: Recipe,
    quick: bool = False,
    only: Sequence[str] = (),
    how: Mapping[str, Any] | None = None,
) -> list[Cell]:
    """The runs that choose the values of tuned rows: every point with the same seeds, whatever
    seeds the cells are run with, so that nothing but the recipe decides what is chosen."""
    seeds = trial_seeds(recipe, quick)
    recipe = recipe.shrunk() if quick else recipe
    found = []
    for r, c in _places(recipe, only):
        for point in r.points:
            over = {**(how or {}), **point, "split.val_share": VAL_SHARE}
            cell = replace(_cell(recipe, r, c, seeds[0], quick, over), point=point)
            found += [_of_seed(cell, seed) for seed in seeds]
    return found


def check_only(recipes: Sequence[Recipe], only: Sequence[str], quick: bool = False) -> None:
    """Each of the names must be a row, a column or a cell of one of the recipes."""
    sizes = [recipe.shrunk() if quick else recipe for recipe in recipes]
    places = [(r.id, c.id) for recipe in sizes for r, c in _places(recipe)]
    for pattern in only:
        if not any(_named(row, column, [pattern]) for row, column in places):
            known = list(dict.fromkeys(name for place in places for name in place))
            names = ", ".join(recipe.name for recipe in recipes)
            raise did_you_mean(pattern, known, f"row or column of {names}")


def with_cells_of_the_same_runs(wanted: Sequence[Cell], all_cells: Sequence[Cell]) -> list[Cell]:
    """Those that are wanted, and others that the same runs fill: a run that is made once should
    leave the numbers of all its cells."""
    runs = {settings_digest(cell.config) for cell in wanted if not cell.broken}
    there = {cell.name for cell in wanted}
    others = [cell for cell in all_cells if not cell.broken and cell.name not in there]
    return [*wanted, *(cell for cell in others if settings_digest(cell.config) in runs)]


def _of_seed(cell: Cell, seed: int) -> Cell:
    """The same cell of another seed: settings are resolved once for all."""
    config = {**cell.config, "seed": seed} if cell.config else {}
    return replace(cell, seed=seed, config=config)


def count(recipe: Recipe, quick: bool = False) -> int:
    """How many cells and trials there are."""
    places = _places(recipe.shrunk() if quick else recipe)
    tried = sum(len(row.points) for row, _ in places)
    return len(places) * len(planned_seeds(recipe, quick)) + tried * len(trial_seeds(recipe, quick))


def planned_seeds(recipe: Recipe, quick: bool = False) -> Sequence[int]:
    return recipe.size.seeds if quick else recipe.seeds


def trial_seeds(recipe: Recipe, quick: bool = False) -> Sequence[int]:
    return recipe.size.seeds if quick else recipe.tune_seeds or recipe.seeds


def _places(recipe: Recipe, only: Sequence[str] = ()) -> list[tuple[RecipeRow, RecipeColumn]]:
    """The rows and columns that meet in a cell, or those that `only` names."""
    both = ((r, c) for r in recipe.rows for c in recipe.columns)
    there = [(r, c) for r, c in both if recipe.has_cell(r.id, c.id)]
    return [(r, c) for r, c in there if _named(r.id, c.id, only)]


def same_settings(recorded: Config, planned: Config) -> bool:
    """Whether a recorded run is the planned one. Settings that the record does not know were added
    later: there the plan must have the default, which is what the old run did. A switch that was
    removed since must have been off. Where the last round's test decides, a run that was tested in
    more rounds than planned will do."""
    old, new = _identity(recorded), _identity(planned)
    every = recorded.get("eval_every")
    if _last_test_decides(planned) and isinstance(every, int) and every > 0:
        old["eval_every"] = new["eval_every"] if new["eval_every"] % every == 0 else every
    off = (False, None)
    if any(new[key] != v if key in new else v not in off for key, v in old.items()):
        return False
    added = [key for key in new if key not in old]
    if not added:
        return True
    names = {section: planned[section].get("name") for section in settings.SECTIONS}
    default = _identity(_defaults(json.dumps(names), planned["rounds"]))
    return all(new[key] == default.get(key) for key in added)


def _last_test_decides(config: Config) -> bool:
    return protocol(config["protocol"]).when == "last" and not any(config["measure"].values())


def settings_digest(config: Config) -> str:
    """Identity of what was run, wherever it was run."""
    text = json.dumps(_identity(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _named(row: str, column: str, only: Sequence[str]) -> bool:
    texts = (row, column, f"{row}/{column}")
    return not only or any(fnmatchcase(text, pattern) for pattern in only for text in texts)


def _cell(
    recipe: Recipe,
    row: RecipeRow,
    column: RecipeColumn,
    seed: int,
    quick: bool,
    how: Mapping[str, Any],
) -> Cell:
    try:
        config = _config(recipe, row, column, seed, quick, how)
    except UserError as error:
        return Cell(row.id, column.id, seed, {}, str(error))
    return Cell(row.id, column.id, seed, config)


def _config(
    recipe: Recipe,
    row: RecipeRow,
    column: RecipeColumn,
    seed: int,
    quick: bool,
    how: Mapping[str, Any],
) -> Config:
    from idiolect.methods import REGISTRY

    if row.method not in REGISTRY:
        raise did_you_mean(row.method, REGISTRY, "method")
    own = {known.name for known in fields(REGISTRY[row.method])}
    layers = [nested(recipe.base), nested(column.set)]
    for layer in layers:
        for key in set(layer.get("method", {})) - _method_keys():
            raise did_you_mean(key, _method_keys(), "setting of any method")
        kept = {k: v for k, v in layer.get("method", {}).items() if k in own}
        layer["method"] = {"name": row.method, **kept}
    layers.append(nested(row.set))
    layers += [nested(one.set) for one in recipe.cells if _concerns(one, row.id, column.id)]
    if quick:
        small = nested(recipe.size.set)
        small["method"] = {k: v for k, v in small.get("method", {}).items() if k in own}
        layers += [small, {"rounds": recipe.size.rounds} if recipe.size.rounds else {}]
    layers.append(nested({**how, "seed": seed}))
    config = settings.resolve_layers(layers)
    config["checkpoint_every"] = max(10, -(-config["rounds"] // 5))
    return config


def _concerns(cell: CellSettings, row: str, column: str) -> bool:
    rows, columns = as_tuple(cell.row), as_tuple(cell.column)
    return (not rows or row in rows) and (not columns or column in columns)


def nested(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as sections: {"split.alpha": 1} is {"split": {"alpha": 1}}."""
    out: dict[str, Any] = {}
    for path, value in layer.items():
        first, dot, rest = path.partition(".")
        value = {rest: value} if dot else value
        if isinstance(value, Mapping):
            before = out.get(first, {})
            before = {"name": before} if isinstance(before, str) else before
            out[first] = {**before, **nested(value)}
        else:
            out[first] = value
    return out


@cache
def _method_keys() -> frozenset[str]:
    """The settings of all methods."""
    from idiolect.methods import REGISTRY

    kinds = (*REGISTRY.values(), REGISTRY["fedavg_ft"])
    return frozenset(known.name for kind in kinds for known in fields(kind))


def _identity(config: Config) -> dict[str, Any]:
    kept = {key: value for key, value in config.items() if key not in CIRCUMSTANCES}
    if not kept.get("stop_after"):  # records made before it existed stay the same
        kept.pop("stop_after", None)
    flat = dict(_flat(kept))
    for section, own in settings.own_names(config).items():
        # Records do not tell the folders of a machine.
        flat[section if "." in section else f"{section}.name"] = own_code.short(own)
    return flat


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@lru_cache(maxsize=256)
def _defaults(names: str, rounds: int) -> Config:
    sections = {key: {"name": name} for key, name in json.loads(names).items() if name}
    return settings.resolve_layers([{**sections, "rounds": rounds}])
