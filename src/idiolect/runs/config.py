"""One resolved, checked settings dict from defaults, a YAML file, flags and `--set a.b=value`.

Sections `method`, `data`, `split` and `model` belong to their rooms, which check their keys; all
other keys are checked here.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from idiolect.errors import UserError, did_you_mean
from idiolect.simulation.metrics import PROTOCOLS

Config = dict[str, Any]

SECTIONS = ("method", "data", "split", "model")
DEFAULTS: Config = {
    "method": {},
    "data": {"name": "digits"},
    "split": {"name": "dirichlet"},
    "model": {},
    "rounds": None,
    "seed": 0,
    "participation": {"kind": "fixed", "rate": 1.0},
    "stragglers": {"count": 0, "cycle": "auto"},
    "clock": None,
    "schedule": None,
    "engine": "stacked",
    "device": "auto",
    "dtype": "float32",
    "keep": "auto",
    "eval_every": 1,
    "protocol": "default",
    "init": None,
    "save_models": None,
    "checkpoint_every": 10,
}
CHOICES: dict[str, tuple[str, ...]] = {
    "engine": ("stacked", "loop"),
    "dtype": ("float32", "float64", "tf32"),
    "keep": ("auto", "device", "host", "disk"),
    "protocol": tuple(PROTOCOLS),
    "save_models": ("every", "last", "best"),
}
SMALLEST = {"rounds": 1, "seed": 0, "eval_every": 1, "checkpoint_every": 1}
PARTICIPATION = ("full", "fixed", "binomial")
CYCLES = ("auto", "code", "paper", "discard")


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
    config: Config = json.loads(json.dumps(DEFAULTS))
    if file is not None:
        _merge(config, read_yaml(file))
    _merge(config, flags or {})
    for item in sets:
        _merge(config, parse_set(item))
    return check(config)


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


def check(config: Config) -> Config:
    """Types, ranges and names; sections are completed with their rooms' defaults."""
    config = dict(config)
    for name, choices in CHOICES.items():
        value = config[name]
        if value not in choices and not (value is None and DEFAULTS[name] is None):
            raise did_you_mean(value, choices, name)
    _check_device(config["device"])
    config["method"] = _method(config["method"])
    if config["rounds"] is None:
        config["rounds"] = rounds_default(config["method"]["name"])
    for name, least in SMALLEST.items():
        _whole(name, config[name], least)
    config["participation"] = _participation(config["participation"])
    config["stragglers"] = _stragglers(config["stragglers"])
    config["clock"] = _clock(config["clock"])
    for name in ("schedule", "init"):
        config[name] = _path(name, config[name])
    return _complete(config)


def digest(config: Config) -> str:
    """Identity of a run's settings; where clients were kept meanwhile is no part of it."""
    what = {key: value for key, value in config.items() if key != "keep"}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def dump(config: Config) -> str:
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
    from idiolect import methods

    return int(getattr(methods.REGISTRY[method], "rounds_default", 50))


def has_personal_model(method: str) -> bool:
    """Whether the method's clients predict with something other than the shared model."""
    from idiolect.methods import REGISTRY

    return method not in REGISTRY or REGISTRY[method].personal_part != "nothing"


def methods_known(names: Sequence[str]) -> list[str]:
    from idiolect import methods

    for name in names:
        if name not in methods.REGISTRY:
            raise did_you_mean(name, methods.REGISTRY, "method")
    return list(names)


def parse_participation(text: str) -> Config:
    """`0.5`, `binomial:0.5` or `full`."""
    kind, colon, rate = text.partition(":")
    if text == "full":
        return {"kind": "full", "rate": 1.0}
    if not colon:
        kind, rate = "fixed", text
    try:
        return {"kind": kind, "rate": float(rate)}
    except ValueError:
        raise UserError(
            f"participation must be a rate in (0, 1], binomial:RATE or full, got '{text}'"
        ) from None


def _merge(config: Config, layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if key not in DEFAULTS:
            raise did_you_mean(key, DEFAULTS, "setting")
        if key in SECTIONS:
            section = {"name": value} if isinstance(value, str) else value
            if not isinstance(section, Mapping):
                raise UserError(f"{key} must be a name or a section with keys, got {value!r}")
            renamed = section.get("name", config[key].get("name")) != config[key].get("name")
            # Options of one split or method mean nothing to another.
            config[key] = dict(section) if renamed else {**config[key], **section}
        elif isinstance(value, Mapping) and key in ("participation", "stragglers", "clock"):
            config[key] = {**_as_section(key, config[key]), **value}
        elif isinstance(value, Mapping):
            raise UserError(f"{key} is one value and has no '{next(iter(value), '')}' of its own")
        else:
            config[key] = value


def _as_section(key: str, value: Any) -> Config:
    if isinstance(value, Mapping):
        return dict(value)
    if key == "participation" and value is not None:
        return parse_participation(str(value))
    if key == "stragglers" and value is not None:
        return {"count": value}
    return {}


def _participation(value: Any) -> Config:
    section = _as_section("participation", "full" if value is None else value)
    _known(section, ("kind", "rate"), "key of participation")
    kind, rate = section.get("kind", "fixed"), section.get("rate", 1.0)
    if kind not in PARTICIPATION:
        raise did_you_mean(kind, PARTICIPATION, "participation")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1:
        raise UserError(f"participation must be a rate above 0 and at most 1, got {rate!r}")
    if kind == "full" and rate != 1:
        kind = "fixed"
    return {"kind": kind, "rate": float(rate)}


def _stragglers(value: Any) -> Config:
    section = _as_section("stragglers", value)
    _known(section, ("count", "cycle", "periods"), "key of stragglers")
    section = {"count": 0, "cycle": "auto", **section}
    _whole("stragglers.count", section["count"], 0)
    if section["cycle"] not in CYCLES:
        raise did_you_mean(section["cycle"], CYCLES, "straggler cycle")
    periods = section.get("periods")
    if periods is None:
        section.pop("periods", None)
    elif not isinstance(periods, list) or not all(type(p) is int and p >= 0 for p in periods):
        raise UserError(f"stragglers.periods must be a list of whole numbers, got {periods!r}")
    return section


def _clock(value: Any) -> Config | None:
    if value is None or value is False:
        return None
    from dataclasses import asdict, fields

    from idiolect.simulation.schedule import Clock

    section = {} if value is True else value
    if not isinstance(section, Mapping):
        raise UserError(f"clock must be a section such as clock.window=1.0, got {value!r}")
    _known(section, [field.name for field in fields(Clock)], "key of clock")
    try:
        return asdict(Clock(**section))
    except (TypeError, ValueError) as error:
        raise UserError(f"clock: {error}") from None


def _method(section: Config) -> Config:
    from dataclasses import asdict

    from idiolect import methods

    if not section.get("name"):
        raise UserError(f"no method given; known: {', '.join(sorted(methods.REGISTRY))}")
    return {"name": section["name"], **asdict(methods.build(section))}


def _complete(config: Config) -> Config:
    """Every option of data, split and model written out, as plain YAML values."""
    from idiolect import models
    from idiolect.data import datasets, splits

    data = datasets.resolved(config["data"])
    split = splits.resolved(config["split"])
    model = models.resolved(config["model"], datasets.dataset(data).shape)
    plain: Config = json.loads(json.dumps({**config, "data": data, "split": split, "model": model}))
    return plain


def _check_device(value: Any) -> None:
    if not isinstance(value, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise did_you_mean(value, ("auto", "cpu", "cuda"), "device")


def _whole(name: str, value: Any, least: int) -> None:
    if type(value) is not int or value < least:
        raise UserError(f"{name} must be a whole number of at least {least}, got {value!r}")


def _path(name: str, value: Any) -> str | None:
    if value is None:
        return None
    path = Path(str(value)).expanduser()
    if not path.exists():
        raise UserError(f"{name}: {path} does not exist")
    return str(path.resolve())


def _known(section: Mapping[str, Any], known: Sequence[str], kind: str) -> None:
    for key in section:
        if key not in known:
            raise did_you_mean(key, known, kind)
