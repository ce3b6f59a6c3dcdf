"""The settings of a run: one typed declaration, and how defaults, a YAML file, command-line options
and `--set key=value` become one resolved config.

A resolved config is a plain dict with every setting written out, as in `config.yaml`. The sections
`method`, `data`, `split` and `model` have a `name` and are checked by the rooms they belong to.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idiolect.core.augmentation import own_words
from idiolect.core.fields import Checked, flat, hints, hyper, make, members
from idiolect.core.own_code import called, is_function, is_own, whole
from idiolect.errors import UserError, did_you_mean
from idiolect.runs import strict_yaml
from idiolect.runs.loggers import Loggers
from idiolect.simulation.schedule import Clock
from idiolect.simulation.settings import SimulationOptions

Config = dict[str, Any]


@dataclass(frozen=True)
class RunConfig(SimulationOptions):
    """Everything a run is made of. Defaults, command-line options and their help, `config.yaml` and
    the table in docs/cli.md come from these fields and from those of `SimulationOptions`."""

    method: dict = hyper({}, "method (idiolect list methods), or your own file.py:Class")
    data: dict = hyper(
        {"name": "digits"}, "dataset (idiolect list datasets), your own files, or file.py:function"
    )
    split: dict = hyper(
        {"name": "dirichlet"}, "how the data is split over clients, or your own file.py:Name"
    )
    model: dict = hyper({}, "network, or your own file.py:Class; by dataset if not given")
    checkpoint_every: int = hyper(10, "rounds from one checkpoint to the next", min=1)
    log: Loggers = hyper(Loggers(), "rounds shown besides: csv, tensorboard, mlflow, wandb")

    def __post_init__(self) -> None:
        for name in SECTIONS:
            value = getattr(self, name)
            object.__setattr__(self, name, {"name": value} if isinstance(value, str) else value)
        super().__post_init__()
        for name in ("schedule", "init"):
            if not isinstance(getattr(self, name), Path | None):
                raise UserError(f"{name} must be a path, got {getattr(self, name)!r}")

    def as_dict(self) -> Config:
        section = super().as_dict()
        return {name: section[name] for name in (*SECTIONS, *section)}  # sections come first


SECTIONS = ("method", "data", "split", "model")
CIRCUMSTANCES = ("keep", "log")  # no part of what a run is
ADDED = ("measure", "stop_after", "loss", "augment")  # older configs do not have them
SHORT_FORMS = {"participation": "participation.rate", "stragglers": "stragglers.count"}
SETTINGS = tuple(RunConfig().as_dict())
# Settings of methods that came later: at these values runs made before stay the same runs.
LATER = {
    "optimizer": "sgd",
    "clip": 0.0,
    "keep_optimizer": False,
    "lr_schedule": "step",
    "lr_every": 1,
    "lr_rounds": 0,
    "lr_warmup": 0,
}


def resolve(
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    allow_code: Collection[str] = (),
) -> Config:
    """Defaults < file < flags and sets, checked and complete. Own methods and splits are loaded for
    their settings, if `allow_code` names them."""
    flags = flags or {}
    _refuse_contradictions(flags, sets)
    below = {} if file is None else read_yaml(file)
    above = [flags, *map(parse_set, sets)]
    try:
        return resolve_layers([below, *above], allow_code)
    except UserError as error:
        if below and _mistake([below, *map(_names, above)], allow_code) == str(error):
            raise UserError(f"{file}: {error}") from None
        raise


def resolve_layers(layers: Iterable[Mapping[str, Any]], allow_code: Collection[str] = ()) -> Config:
    """Defaults below all layers, each over those before it, checked and complete."""
    return complete(_layered(*layers), allow_code)


def check(config: Config, file: Path, allow_code: Collection[str] = ()) -> None:
    """Refuse a resolved config that was damaged since it was written to `file`."""
    for key in SETTINGS:
        if key not in config and key not in (*CIRCUMSTANCES, *ADDED):
            raise UserError(f"{file} lacks '{key}'; put it back")
    if mistake := _mistake([config], allow_code):
        raise UserError(f"{file}: {mistake}")


def _layered(*layers: Mapping[str, Any]) -> Config:
    """The layers over the defaults; options without a name are for what is chosen in the end."""
    default = RunConfig().as_dict()
    config = {**default, **{section: {} for section in SECTIONS}}
    for layer in layers:
        _merge(config, layer)
    if "name" not in config["split"]:
        default["split"] = _default_split({**default["data"], **config["data"]}, default["split"])
    return config | {section: {**default[section], **config[section]} for section in SECTIONS}


def _default_split(data: Config, usual: Config) -> Config:
    """By client where the user's own data names clients; a mistake in it is told by `complete`."""
    from idiolect.data import datasets

    if is_function(data["name"]):
        return {"name": "own"}
    try:
        dataset = datasets.dataset(data)
        if dataset.names_clients:
            return {"name": "natural"}
        return usual if dataset.task == "classification" else {"name": "iid"}
    except UserError:
        return usual


def _mistake(layers: Iterable[Mapping[str, Any]], allow_code: Collection[str]) -> str:
    """The error of these layers, if they have one."""
    try:
        resolve_layers(layers, allow_code)
    except UserError as error:
        return str(error)
    return ""


def _names(layer: Mapping[str, Any]) -> Config:
    """Of a layer only what it chooses by name."""
    sections = {key: layer[key] for key in SECTIONS if key in layer}
    named = {key: one["name"] if isinstance(one, Mapping) and "name" in one else one
             for key, one in sections.items()}  # fmt: skip
    return {key: name for key, name in named.items() if isinstance(name, str)}


def read_yaml(path: Path) -> Config:
    """Settings from a YAML file, such as the config.yaml of a run."""
    try:
        with path.open(encoding="utf-8") as file:
            loaded = strict_yaml.load(file.read(strict_yaml.MAX_CHARACTERS + 1))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not valid YAML: it is not text in UTF-8") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path} must hold `key: value` lines such as `rounds: 50`")
    return loaded


def parse_set(item: str) -> Config:
    """`split.alpha=0.1` as {"split": {"alpha": 0.1}}."""
    path, equals, text = item.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise UserError(f"--set takes key=value such as method.lr=0.05, got '{item}'")
    try:
        value = strict_yaml.load(text)
    except ValueError as error:
        raise UserError(f"--set {path}: '{text}' is not a YAML value: {error}") from None
    for key in reversed(keys):
        value = {key: value}
    return dict(value)


def own_names(config: Mapping[str, Any]) -> dict[str, str]:
    """The own code that settings name, by section."""
    named = {}
    for key in SECTIONS:
        section = config.get(key)
        name = section.get("name") if isinstance(section, Mapping) else section
        if isinstance(name, str) and (is_function(name) if key == "data" else is_own(name)):
            named[key] = name
    data = config.get("data")
    if isinstance(data, Mapping) and is_own(data.get("metric")):
        named["data.metric"] = data["metric"]
    if isinstance(loss := config.get("loss"), str):
        named["loss"] = loss
    for k, name in enumerate(own_words(config.get("augment"))):
        named[f"augment {k + 1}" if k else "augment"] = name
    return named


def code_named(flags: Mapping[str, Any], sets: Sequence[str]) -> set[str]:
    """Own code that the command line itself names, which is permission to run it."""
    layers = (flags, *map(parse_set, sets))
    return {name for layer in layers for name in own_names(layer).values()}


def complete(config: Mapping[str, Any], allow_code: Collection[str] = ()) -> Config:
    """The config checked, with every setting of its method, data, split and model written out."""
    from idiolect import models
    from idiolect.data import datasets, splits

    made = make(RunConfig, config, "a run").as_dict()
    made["method"] = _complete_method(made["method"], allow_code)
    if made["rounds"] is None:
        made["rounds"] = rounds_default(made["method"]["name"])
    dataset = datasets.dataset(made["data"])
    made["data"] = dataset.resolved()
    made["split"] = splits.split(made["split"], allow_code).resolved()
    made["model"] = models.resolved(made["model"], dataset.shape, dataset.sample_form)
    plain: Config = json.loads(json.dumps(made))
    return plain


def digest(config: Config) -> str:
    """Identity of a run's settings; where clients were kept meanwhile, and who was shown the
    rounds, is no part of it."""
    what = {key: value for key, value in config.items() if key not in CIRCUMSTANCES}
    for added in ADDED:  # so that runs made before them stay the same
        if not what.get(added):
            what.pop(added, None)
    if isinstance(what.get("method"), Mapping):
        method = what["method"].items()
        what["method"] = {k: v for k, v in method if k not in LATER or v != LATER[k]}
    if isinstance(what.get("clock"), Mapping):  # `window: 2` and `window: 2.0` are the same clock
        what["clock"] = Clock.of(what["clock"]).as_dict()
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def changed_keys(was: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings in which a run's config differs from what it began with, with both values."""
    if digest(dict(was)) == digest(dict(now)):
        return {}
    before, after = (
        flat({k: v for k, v in one.items() if k not in CIRCUMSTANCES}) for one in (was, now)
    )
    keys = dict.fromkeys([*before, *after])
    both = {k: (before.get(k, "missing"), after.get(k, "missing")) for k in keys}
    return {key: pair for key, pair in both.items() if pair[0] != pair[1]}


def dump(config: Config) -> str:
    """The text of config.yaml."""
    return strict_yaml.dump(config)


def label(*configs: Config) -> str:
    """How a run is called where people read it, or several of one method that are run together."""
    varied = {k.removeprefix("method."): v for k, v in differences(configs).items()}
    varied["seed"] = [config["seed"] for config in configs]
    values = [f"{key} {','.join(dict.fromkeys(map(str, v)))}" for key, v in varied.items()]
    return " ".join([called(configs[0]["method"]["name"]), *values])


def labels(configs: Sequence[Config]) -> list[str]:
    """How each of several runs of one method is called: `fedprox mu 0.1 seed 0`."""
    varied = {k.removeprefix("method."): v for k, v in differences(configs).items()}
    varied["seed"] = [config["seed"] for config in configs]
    return [
        " ".join([called(one["method"]["name"]), *(f"{key} {v[n]}" for key, v in varied.items())])
        for n, one in enumerate(configs)
    ]


def short_name(name: str) -> str:
    """A name of a config as part of a folder's: of a path or of own code, what people call it."""
    own = re.split(r"[/\\]", name)[-1]
    return re.sub(r"[^\w.-]+", "-", re.sub(r"\.(csv|tsv|parquet|npz|py)\b", "", own)) or "data"


def differences(configs: Sequence[Config]) -> dict[str, list[Any]]:
    """The settings in which configs differ, apart from the seed: `method.lr`, with the value of
    every config."""
    each = [flat({**config, "seed": None}) for config in configs]
    keys = dict.fromkeys(key for one in each for key in one)
    values = {key: [one.get(key) for one in each] for key in keys}
    return {key: v for key, v in values.items() if any(one != v[0] for one in v)}


def rounds_default(method: str) -> int:
    """Rounds a method's paper ran it for."""
    from idiolect.methods import REGISTRY

    return REGISTRY[method].rounds_default


def section_type(name: str) -> type[Checked] | None:
    """The class behind a setting that has keys of its own, as `clock`."""
    for kind in members(hints(RunConfig)[name]):
        if isinstance(kind, type) and issubclass(kind, Checked):
            return kind
    return None


def _refuse_contradictions(flags: Mapping[str, Any], sets: Sequence[str]) -> None:
    """The command line says everything once: of two values nobody knows which one is meant."""
    given: dict[str, tuple[str, str]] = {}
    layers = [(f"--set {item}", parse_set(item)) for item in sets]
    for how, layer in [("", flags), *layers]:
        for key, value in flat(layer).items():
            # `--seed 1` is the key `seed`, `--model m` is `model.name`, `--stragglers 2` a count.
            key = f"{key}.name" if key in SECTIONS else SHORT_FORMS.get(key, key)
            option = key.removesuffix(".name").rpartition(".")[2].replace("_", "-")
            said = how or (f"{option} {value}" if option == "method" else f"--{option} {value}")
            first, before = given.setdefault(key, (str(value), said))
            if first != str(value):
                raise UserError(f"{before} and {said} contradict each other; give one of them")


def _merge(config: Config, layer: Mapping[str, Any]) -> None:
    """Put a layer of settings over the config; keys of a section are put over its keys."""
    for key, value in layer.items():
        if key not in SETTINGS:
            raise did_you_mean(key, SETTINGS, "setting")
        if key in SECTIONS:
            section = {"name": value} if isinstance(value, str) else value
            if not isinstance(section, Mapping):
                raise UserError(f"{key} must be a name or a section with keys, got {value!r}")
            before = config[key].get("name")
            renamed = before is not None and section.get("name", before) != before
            # Options of one split or method mean nothing to another.
            config[key] = dict(section) if renamed else {**config[key], **section}
        elif isinstance(value, Mapping):
            if section_type(key) is None:
                first = next(iter(value), "")
                raise UserError(f"{key} is one value and has no '{first}' of its own")
            below = RunConfig(**{key: config[key]}).as_dict()[key]  # a short form becomes keys
            config[key] = {**(below or {}), **value}
        else:
            config[key] = value


def _complete_method(section: Config, allow_code: Collection[str]) -> Config:
    from idiolect import methods

    if not section.get("name"):
        raise UserError(f"no method given; known: {', '.join(methods.REGISTRY.names)}")
    made = methods.build(section, allow_code).as_dict()
    name = section["name"]
    return {"name": whole(name) if is_own(name) else name, **made}
