"""Config sections to frozen dataclasses: names and keys are checked, mistakes get a hint."""

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from typing import Any, TypeVar

from idiolect.errors import UserError, did_you_mean

T = TypeVar("T")


def option(default: Any, doc: str) -> Any:
    """A dataclass field with the sentence that --help and `list` show."""
    return field(default=default, metadata={"doc": doc})


def make(registry: Mapping[str, type[T]], section: Mapping[str, Any], kind: str) -> T:
    """{"name": "shards", "clients": 5} -> Shards(clients=5)."""
    options = dict(section)
    name = options.pop("name", None)
    if name is None:
        raise UserError(f"{kind} needs a name, one of: {', '.join(sorted(registry))}")
    if name not in registry:
        raise did_you_mean(name, registry, kind)
    cls = registry[name]
    known = typing.get_type_hints(cls)
    names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    for key, value in options.items():
        if key not in names:
            raise did_you_mean(key, names, f"option of {kind} '{name}'")
        options[key] = _converted(f"{kind}.{key}", value, known[key])
    return cls(**options)


def fields_of(cls: type) -> list[dict[str, Any]]:
    """Name, type, default and doc of every option, JSON-able."""
    hints = typing.get_type_hints(cls)
    return [
        {
            "name": f.name,
            "type": _type_name(hints[f.name]),
            "default": None if f.default is MISSING else f.default,
            "doc": f.metadata.get("doc", ""),
        }
        for f in fields(cls)
    ]


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is types.UnionType:
        return " | ".join(_type_name(h) for h in typing.get_args(hint))
    if hint is type(None):
        return "null"
    return str(hint) if typing.get_origin(hint) else str(hint.__name__)


def _converted(key: str, value: Any, hint: Any) -> Any:
    choices = typing.get_args(hint) if typing.get_origin(hint) is types.UnionType else (hint,)
    for choice in choices:
        if choice is type(None) and value is None:
            return None
        if choice is float and type(value) in (int, float):
            return float(value)
        if choice in (int, bool, str) and type(value) is choice:
            return value
        if typing.get_origin(choice) is tuple and isinstance(value, (list, tuple)):
            inner = typing.get_args(choice)
            if len(value) == len(inner):
                return tuple(_converted(key, v, h) for v, h in zip(value, inner, strict=True))
    raise UserError(f"{key} must be {_type_name(hint)}, got {value!r}")
