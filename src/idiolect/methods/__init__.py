"""One file per method; this is the registry by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from importlib import import_module
from typing import Any, Literal, get_args, get_origin, get_type_hints

from idiolect.core.method import Method
from idiolect.errors import UserError, did_you_mean
from idiolect.methods.fine_tuning import SUFFIX, fine_tuned

FILES = (
    "local",
    "fedavg",
    "fedper",
    "lg_fedavg",
    "fedbn",
    "fedbabu",
    "fedrep",
    "spfl",
    "spfl_w",
    "fedavg_async",
    "lga",
    "plga",
    "feddwa",
    "pflego",
    "fedas",
    "fedrod",
    "fedrecon",
    "fedproto",
    "fedpac",
    "cd2_pfed",
    "fedavgm",
    "fedprox",
    "fine_tuning",
    "fedupdate",
    "per_fedavg",
    "per_fedavg_async",
    "pfedme",
    "ditto",
    "apfl",
    "scaffold",
    "fedamp",
    "fedfomo",
    "l2c",
    "sfl",
    "cfl",
    "fedala",
)


def _methods_of(file: str) -> list[type[Method]]:
    """The methods a file defines: its concrete classes with a name of their own."""
    module = import_module(f"idiolect.methods.{file}")
    return [
        v
        for v in vars(module).values()
        if isinstance(v, type)
        and issubclass(v, Method)
        and v.__module__ == module.__name__
        and "name" in vars(v)
    ]


class Registry(dict[str, type[Method]]):
    """Methods by name. `NAME_ft` is there for every NAME, listed or not: NAME, fine-tuned."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or self._to_tune(name) is not None

    def __missing__(self, name: str) -> type[Method]:
        base = self._to_tune(name)
        if base is None:
            raise KeyError(name)
        return fine_tuned(base)

    def _to_tune(self, name: object) -> type[Method] | None:
        base = str(name).removesuffix(SUFFIX)
        return None if base == str(name) or base.endswith(SUFFIX) else self.get(base)


REGISTRY = Registry({m.name: m for file in FILES for m in _methods_of(file)})


def build(section: Mapping[str, Any] | str) -> Method:
    """A method from its name and hyperparameters, every value checked against its type."""
    section = {"name": section} if isinstance(section, str) else dict(section)
    name = section.pop("name", None)
    if name not in REGISTRY:
        raise did_you_mean(name, REGISTRY, "method")
    kind = REGISTRY[name]
    known = {f.name: f for f in fields(kind)}
    hints = get_type_hints(kind)
    values = {}
    for key, value in section.items():
        if key not in known:
            raise did_you_mean(key, known, f"hyperparameter of {name}")
        values[key] = _checked(name, known[key], hints[key], value)
    method = kind(**values)
    _check_ranges(method)
    return method


def _checked(method: str, known: Field[Any], hint: Any, value: Any) -> Any:
    """The value in the field's type, or an error that says what is allowed."""
    allowed = [hint] if get_origin(hint) is Literal or not get_args(hint) else list(get_args(hint))
    for kind in allowed:
        if get_origin(kind) is Literal:
            if any(value == a and type(value) is type(a) for a in get_args(kind)):
                return value
        elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        elif isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
            return value
    words = []
    for kind in allowed:
        literal = get_origin(kind) is Literal
        words += [repr(a) for a in get_args(kind)] if literal else [f"a {kind.__name__}"]
    raise UserError(f"method.{known.name} of {method} must be {' or '.join(words)}, not {value!r}")


POSITIVE = {"lr", "batch_size", "tau", "gamma", "top_k", "temperature", "head_temperature"}
NOT_NEGATIVE = {"epochs", "steps", "weight_decay", "momentum", "beta", "rho", "align_lr"}


def _check_ranges(method: Method) -> None:
    for f in fields(method):
        value = getattr(method, f.name)
        if isinstance(value, str | bool):
            continue
        if f.name in POSITIVE and not value > 0:
            raise UserError(f"method.{f.name} must be positive, not {value!r}")
        if f.name in NOT_NEGATIVE and not value >= 0:
            raise UserError(f"method.{f.name} must not be negative, not {value!r}")
    if getattr(method, "epochs", 1) == 0 and getattr(method, "steps", 1) == 0:
        raise UserError("method.epochs and method.steps are both 0: nothing would be trained")


__all__ = ["REGISTRY", "Method", "build"]
