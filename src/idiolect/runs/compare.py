"""Comparisons: several methods on the same clients, over seeds and values of their settings.

What is missing is run, what is unfinished is continued.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from idiolect import methods as registry
from idiolect.core.own_code import called, is_own, whole
from idiolect.engine.ranks import Ranks
from idiolect.errors import UserError, did_you_mean
from idiolect.methods import REGISTRY
from idiolect.runs import config as settings
from idiolect.runs import directory, revision, seal
from idiolect.runs.build import load_federation
from idiolect.runs.environment import check_inputs
from idiolect.runs.execute import Builder, execute_together
from idiolect.runs.fair_work import shared_work
from idiolect.runs.left_out import LeftOut, left_out
from idiolect.runs.progress import Progress
from idiolect.runs.trials import points
from idiolect.simulation.simulate import check_method


@dataclass(frozen=True)
class Plan:
    """One run of a comparison."""

    config: dict[str, Any]
    out: Path
    left_out: LeftOut = field(default_factory=dict)  # of what a settings file says


def plans(
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    sweeps: Sequence[str] = (),
    as_published: bool = False,
    allow_code: Collection[str] = (),
) -> list[Plan]:
    """Every method with every seed and every combination of the values in `sweeps`. `--set
    fedas.lr=…` and `--sweep fedas.lr=…` are meant for fedas alone. All do the same local work
    unless `as_published`: then each does that of its paper. Own code is loaded if `allow_code`
    names it, and is called by its class: `--set MyMethod.lr=…`."""
    known = [_known(name, allow_code) for name in methods]
    if len(set(map(called, known))) < len(known):
        raise UserError("each method can be compared once; to vary its settings use --sweep")
    todo = [(name, point) for name in known for point in _points(name, known, sweeps)]
    flags, below = dict(flags or {}), {} if file is None else settings.read_yaml(file)
    given = "rounds" in flags or any(item.startswith("rounds=") for item in sets)
    given = given or any("rounds" in point for _, point in todo) or "rounds" in below
    if not given:
        # Papers ran their methods for different lengths; a comparison needs one.
        flags["rounds"] = max(settings.rounds_default(name) for name in known)
    made = []
    for seed in seeds:
        for name, point in todo:
            swept = [f"{path}={value}" for path, value in point.items()]
            told = _meant_for(name, known, sets)
            for item in told:
                if item.partition("=")[0] in point:
                    raise UserError(
                        f"--set {item} contradicts the values of --sweep or --tune for "
                        f"{called(name)}; give one of them"
                    )
            method = {"name": name}
            if not as_published:
                method |= shared_work(name, below, [*told, *swept])
            given_here = {**flags, "method": method, "seed": seed}
            config = settings.resolve(file, given_here, [*told, *swept], allow_code)
            values = [_told(config, path, text) for path, text in point.items()]
            place = out / "-".join([called(name), *values, f"seed{seed}"])
            above = [flags, *map(settings.parse_set, [*told, *swept])]
            made.append(Plan(config, place, left_out(below, above, config)))
    if len({item.out for item in made}) < len(made):
        raise UserError("--sweep takes different values for a setting")
    return made


def _known(name: str, allow_code: Collection[str]) -> str:
    """The name of a method as configs have it."""
    if is_own(name):
        REGISTRY.admit(name, allow_code)
        return whole(name)
    if name not in REGISTRY:
        raise did_you_mean(name, REGISTRY.names, "method")
    return name


def run_all(plan: Sequence[Plan], progress: Progress, build: Builder | None = None) -> None:
    """Run what is missing, continue what is unfinished, and run again what an earlier revision of
    its method made."""
    # All directories are checked before the first minute is spent.
    ranks = Ranks.current()
    states = [ranks.agree(_state, item) for item in plan]
    again = ranks.agree(_earlier, plan)
    for words in again.values():
        progress.note(f"{words}: it is run again")
    by_method: dict[str, list[Plan]] = {}  # seeds and values of one share a stack if they can
    for item, found in zip(plan, states, strict=True):
        if found == "finished" and str(item.out) not in again:
            progress.note(f"{settings.label(item.config)}: already finished in {item.out}")
        else:
            by_method.setdefault(_stackable(item.config), []).append(item)
    for items in by_method.values():
        outs = [item.out for item in items]
        execute_together([item.config for item in items], outs, True, progress, build, again)


def _state(item: Plan) -> directory.State:
    """How far a run is; UserError where other settings, code or files made what is there."""
    found = directory.state(item.out, item.config)
    if found == "finished":
        seal.check(item.out, item.config, lambda line: None)  # runs of earlier versions have none
        with suppress(OSError):  # the files it started from may be elsewhere by now
            check_inputs(item.out, item.config)
    return found


def _earlier(plan: Sequence[Plan]) -> dict[str, str]:
    """The runs that are made again, by their folders, with words for it."""
    return revision.earlier([item.config for item in plan], [item.out for item in plan])


def check(plan: Sequence[Plan], allow_code: Collection[str] = ()) -> None:
    """Say before the first run which method cannot do what the data asks for, and which finished
    runs were on other data than the new ones would be."""
    ranks = Ranks.current()
    again = ranks.agree(_earlier, plan)
    states = [ranks.agree(_state, item) for item in plan]
    todo = [
        item for item, found in zip(plan, states, strict=True)
        if found != "finished" or str(item.out) in again
    ]  # fmt: skip
    if not todo:
        return  # the data may be elsewhere by now
    first = todo[0].config
    federation = load_federation(first, allow_code)
    for item in todo:
        method = registry.build(item.config["method"], allow_code)
        check_method(method, federation.task, item.config["loss"])
    for item in plan:
        beside = all(item.config[key] == first[key] for key in ("data", "split", "seed"))
        if beside and item not in todo:
            check_inputs(item.out, item.config, SimpleNamespace(federation=federation))


def parse_seeds(text: str) -> list[int]:
    """`0,1,2`."""
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds takes whole numbers such as 0,1,2, got '{text}'") from None
    if len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UserError(f"--seeds takes different numbers of at least 0, got '{text}'")
    return seeds


def seeds_of(
    text: str | None, file: Path | None, flags: Mapping[str, Any], sets: Sequence[str]
) -> list[int]:
    """The seeds of `--seeds`, else the one that a flag, `--set` or the settings file gives."""
    layers = [flags, *map(settings.parse_set, sets)]
    told = [layer["seed"] for layer in layers if "seed" in layer]
    if text is None:
        file_says = {} if file is None or told else settings.read_yaml(file)
        return told[:1] or [file_says.get("seed", settings.RunConfig().seed)]
    seeds = parse_seeds(text)
    for seed in told:
        if seeds != [seed]:
            raise UserError(f"--seeds {text} and seed {seed} contradict each other; give --seeds")
    return seeds


def _points(name: str, compared: Sequence[str], sweeps: Sequence[str]) -> list[dict[str, str]]:
    """The combinations of values swept for this method, by path."""
    axes: dict[str, list[str]] = {}
    for item in sweeps:
        path, equals, values = item.partition("=")
        if not equals or not all(text.strip() for text in values.split(",")):
            raise UserError(f"--sweep takes key=value,value such as mu=0.01,0.1, got '{item}'")
        swept = _swept_path(path.strip(), name, compared)
        if swept is None:
            continue
        if swept in axes:
            key = swept.removeprefix("method.")
            raise UserError(f"--sweep has {key} of {called(name)} twice; give all values in one")
        axes[swept] = [text.strip() for text in values.split(",")]
    return points(axes)


def _swept_path(path: str, name: str, compared: Sequence[str]) -> str | None:
    """`lr`, `method.lr` and `fedas.lr` as `method.lr`, `clients` as `split.clients`, any other
    setting as it is; None for a hyperparameter that is not meant for this method."""
    first, dot, rest = path.partition(".")
    if path == "clients":
        return "split.clients"
    settable = {other: _settable(other) for other in compared}
    bare = not dot and any(path in known for known in settable.values())
    if not bare and first in settings.SETTINGS and first != "method":
        if first == "seed":
            raise UserError("--sweep seed=…: give seeds with --seeds 0,1,2")
        return path
    whose, key = (first, rest) if dot else ("method", path)
    names = {called(other): other for other in compared}
    if whose != "method" and whose not in names:
        raise did_you_mean(whose, [*names, *settings.SETTINGS], "method or setting")
    meant = [names[whose]] if whose != "method" else compared
    having = [other for other in meant if key in settable[other]]
    if not having:
        known = {f for other in meant for f in settable[other]} | (set() if dot else SWEPT)
        raise did_you_mean(key, sorted(known), f"hyperparameter of {', '.join(map(called, meant))}")
    return f"method.{key}" if name in having else None


def _settable(method: str) -> list[str]:
    """The names of a method's hyperparameters, without what its class says about it."""
    return [known.name for known in fields(REGISTRY[method])]


SWEPT = set(settings.SETTINGS) - set(settings.SECTIONS) - {"seed"} | {"clients"}


def _told(config: settings.Config, path: str, text: str) -> str:
    """A swept setting in the name of a run's directory: `mu0.1`, `split.alpha0.1`."""
    value: object = config
    for key in path.split("."):
        value = value[key] if isinstance(value, Mapping) and key in value else text
    shown = text if isinstance(value, Mapping) else str(value)
    return f"{path.removeprefix('method.')}{shown}".replace("/", "_")


def _stackable(config: settings.Config) -> str:
    """What runs must have in common to be built side by side; others would only fill memory."""
    keys = ("data", "model", "rounds", "eval_every", "engine", "device", "dtype")
    return json.dumps([config["method"]["name"], *(config[key] for key in keys)])


def _meant_for(name: str, compared: Sequence[str], sets: Sequence[str]) -> list[str]:
    """Settings for all methods, and those for this one, as `method.key=value`. A hyperparameter
    that only some of the compared methods have is for those. What is said for this method alone
    comes instead of what is said for all."""
    kept, own = [], []
    names = {called(other): other for other in compared}
    for item in sets:
        first, dot, rest = item.partition(".")
        if dot and (first in REGISTRY or first in names):
            if first not in names:
                raise UserError(
                    f"--set {item}: {first} is not compared; name it among the methods or leave "
                    "the setting out"
                )
            if names[first] == name:
                own.append(f"method.{rest}")
            continue
        key = rest.partition("=")[0]
        has = [other for other in compared if key in _settable(other)]
        if first == "method" and has and name not in has:
            continue
        kept.append(item)
    keys = {item.partition("=")[0] for item in own}
    return [item for item in kept if item.partition("=")[0] not in keys] + own
