"""The settings of a run: one typed declaration, and how defaults, a YAML file, command-line options
and `--set key=value` become one resolved config.

A resolved config is a plain dict with every setting written out, as in `config.yaml`. The sections
`method`, `data`, `split` and `model` have a `name` and are checked by the rooms they belong to.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from idiolect.core.fields import Checked, hints, hyper, make, members
from idiolect.errors import UserError, did_you_mean
from idiolect.simulation.schedule import Clock
from idiolect.simulation.settings import SimulationOptions

Config = dict[str, Any]


@dataclass(frozen=True)
class RunConfig(SimulationOptions):
    """Everything a run is made of. Defaults, command-line options and their help, `config.yaml` and
    the table in docs/cli.md come from these fields and from those of `SimulationOptions`."""

    method: dict = hyper({}, "method (idiolect list methods)")
    data: dict = hyper({"name": "digits"}, "dataset (idiolect list datasets)")
    split: dict = hyper({"name": "dirichlet"}, "how the data is split over clients")
    model: dict = hyper({}, "network, or your own module:Class; by dataset if not given")
    checkpoint_every: int = hyper(10, "rounds from one checkpoint to the next", min=1)

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
SETTINGS = tuple(RunConfig().as_dict())


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1e-3 as a string; people mean a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def resolve(
    file: Path | None = None, flags: Mapping[str, Any] | None = None, sets: Sequence[str] = ()
) -> Config:
    """Defaults < file < flags < sets, checked and complete."""
    first = [read_yaml(file)] if file is not None else []
    return resolve_layers([*first, flags or {}, *map(parse_set, sets)])


def resolve_layers(layers: Iterable[Mapping[str, Any]]) -> Config:
    """Defaults below all layers, each over those before it, checked and complete."""
    config = RunConfig().as_dict()
    for layer in layers:
        _merge(config, layer)
    return complete(config)


def read_yaml(path: Path) -> Config:
    """Settings from a YAML file, such as the config.yaml of a run."""
    try:
        loaded = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
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
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        raise UserError(f"--set {path}: '{text}' is not a YAML value") from None
    for key in reversed(keys):
        value = {key: value}
    return dict(value)


def complete(config: Mapping[str, Any]) -> Config:
    """The config checked, with every setting of its method, data, split and model written out."""
    from idiolect import models
    from idiolect.data import datasets, splits

    made = make(RunConfig, config, "a run").as_dict()
    made["method"] = _complete_method(made["method"])
    if made["rounds"] is None:
        made["rounds"] = rounds_default(made["method"]["name"])
    dataset = datasets.dataset(made["data"])
    made["data"], made["split"] = dataset.resolved(), splits.split(made["split"]).resolved()
    made["model"] = models.resolved(made["model"], dataset.shape)
    plain: Config = json.loads(json.dumps(made))
    return plain


def digest(config: Config) -> str:
    """Identity of a run's settings; where clients were kept meanwhile is no part of it."""
    what = {key: value for key, value in config.items() if key != "keep"}
    if not what.get("measure"):  # so that runs made before it existed stay the same
        what.pop("measure", None)
    if what.get("clock"):  # `window: 2` and `window: 2.0` are the same clock
        what["clock"] = Clock.of(what["clock"]).as_dict()
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def dump(config: Config) -> str:
    """The text of config.yaml."""
    return yaml.safe_dump(config, sort_keys=False, default_flow_style=None, allow_unicode=True)


def label(*configs: Config) -> str:
    """How a run is called where people read it, or several of one method that are run together."""
    varied = {k.removeprefix("method."): v for k, v in differences(configs).items()}
    varied["seed"] = [config["seed"] for config in configs]
    values = [f"{key} {','.join(dict.fromkeys(map(str, v)))}" for key, v in varied.items()]
    return " ".join([configs[0]["method"]["name"], *values])


def differences(configs: Sequence[Config]) -> dict[str, list[Any]]:
    """The settings in which configs differ, apart from the seed: `method.lr`, with the value of
    every config."""
    flat = [_flat({**config, "seed": None}) for config in configs]
    keys = dict.fromkeys(key for one in flat for key in one)
    values = {key: [one.get(key) for one in flat] for key in keys}
    return {key: v for key, v in values.items() if any(one != v[0] for one in v)}


def _flat(config: Mapping[str, Any], prefix: str = "") -> Config:
    out: Config = {}
    for key, value in config.items():
        inner = isinstance(value, Mapping)
        out |= _flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return out


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


def _merge(config: Config, layer: Mapping[str, Any]) -> None:
    """Put a layer of settings over the config; keys of a section are put over its keys."""
    for key, value in layer.items():
        if key not in SETTINGS:
            raise did_you_mean(key, SETTINGS, "setting")
        if key in SECTIONS:
            section = {"name": value} if isinstance(value, str) else value
            if not isinstance(section, Mapping):
                raise UserError(f"{key} must be a name or a section with keys, got {value!r}")
            renamed = section.get("name", config[key].get("name")) != config[key].get("name")
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


def _complete_method(section: Config) -> Config:
    from idiolect import methods

    if not section.get("name"):
        raise UserError(f"no method given; known: {', '.join(sorted(methods.REGISTRY))}")
    return {"name": section["name"], **methods.build(section).as_dict()}
