"""Settings that are declared once: a dataclass field with its help, bounds and choices.

    @dataclass(frozen=True)
    class Dirichlet(Split):
        alpha: float = hyper(0.1, "concentration of the class shares", above=0)

From this one line come the default, the help text, `idiolect list`, the tables of the documentation
and the check, which runs wherever the object is built: on the command line, from YAML, in Python.
"""

import dataclasses
import math
import re
import sys
import types
import typing
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

from idiolect.core.text import shortened
from idiolect.errors import UserError, did_you_mean

T = TypeVar("T")


def hyper(
    default: Any,
    doc: str = "",
    *,
    min: float | None = None,
    max: float | None = None,
    above: float | None = None,
    below: float | None = None,
    needs: str | None = None,
) -> Any:
    """A setting: its default, what it means, and the numbers it may be. Words it may be are its
    type, `Literal["a", "b"]`. `needs` says when it has an effect: `guidance=n_epochs`, `tau!=1`,
    `weights=a|b, head=own` (both), `layers: stages=2` (of the value `layers`). A subclass that
    declares the setting again keeps its meaning, numbers and needs unless it gives others."""
    bounds = {"min": min, "max": max, "above": above, "below": below}
    kept = {name: value for name, value in bounds.items() if value is not None}
    given = {"doc": doc or None, "bounds": kept or None, "needs": needs}
    about = {name: value for name, value in given.items() if value is not None}
    if isinstance(default, dict | list):
        return field(default_factory=lambda: type(default)(default), metadata=about)
    return field(default=default, metadata=about)


@dataclasses.dataclass(frozen=True)
class Checked:
    """Base of everything that is declared with `hyper`: values are checked when it is built."""

    section: ClassVar[str] = ""  # of a config: `method` in `method.lr`
    short: ClassVar[type | None] = None  # type of its one-value form, as `--participation 0.5`
    takes: ClassVar[str] = "a section with keys"  # what it can be made of, for error messages

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        before = ChainMap(*(vars(base).get("__dataclass_fields__", {}) for base in cls.__mro__[1:]))
        for name, known in vars(cls).items():
            if isinstance(known, dataclasses.Field):
                inherited = before[name].metadata if name in before else {"doc": "", "bounds": {}}
                known.metadata = types.MappingProxyType({**inherited, **known.metadata})

    def __post_init__(self) -> None:
        for known in fields(self):
            value = checked(type(self), known, getattr(self, known.name))
            object.__setattr__(self, known.name, value)

    @classmethod
    def of(cls, value: Any) -> Self:
        """From what a config holds: the object itself, a mapping, or a short form where a subclass
        has one; TypeError if it is something else."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise TypeError
        return make(cls, value, cls.section)

    def as_dict(self) -> dict[str, Any]:
        """Its settings as plain values, the way YAML holds them."""
        return {known.name: plain(getattr(self, known.name)) for known in fields(self)}

    def without_effect(self) -> list[str]:
        """One line for every setting that was changed and changes nothing."""
        lines = []
        for known in fields(self):
            value = getattr(self, known.name)
            for only, key, sign, words in needs_of(known) if value != default_of(known) else []:
                met = (_word(getattr(self, key)) in words) == (sign == "=")
                if not met and only in ("", _word(value)):
                    name, other = _path(type(self), known.name), _path(type(self), key)
                    name, when = f"{name}={only}".rstrip("="), "unless" if sign == "=" else "while"
                    told = f"{when} {other} is {' or '.join(words)}"
                    if words in (["None"], ["()"]):
                        told = f"while {other} is given"
                    lines.append(f"{name} has no effect {told}")
                    break
            if isinstance(value, Checked):
                lines += value.without_effect()
        return lines


def needs_of(known: dataclasses.Field[Any]) -> list[tuple[str, str, str, list[str]]]:
    """A field's `needs`, taken apart: the value they concern ("": any), the other setting, whether
    it must be (=) or not be (!=) one of the words, and the words."""
    texts = filter(None, known.metadata.get("needs", "").split(", "))
    parts = [re.fullmatch(r"(?:(\w+): )?(\w+)(!?=)(\S+)", text) for text in texts]
    found = [one.groups("") for one in parts if one]
    assert len(found) == len(parts), f"needs of {known.name}: write key=value|value or key!=value"
    return [(only, key, sign, words.split("|")) for only, key, sign, words in found]


def make(kind: type[T], options: Mapping[str, Any], what: str) -> T:
    """`kind(**options)`; an option it does not have gets a hint. `what`: 'split shards'."""
    names = [known.name for known in fields(kind)]  # type: ignore[arg-type]
    for key in options:
        if key not in names:
            raise did_you_mean(key, names, f"setting of {what}")
    return kind(**options)


def checked(kind: type, known: dataclasses.Field[Any], value: Any) -> Any:
    """The value in the field's type; an error that says what it may be."""
    path, hint = _path(kind, known.name), hints(kind)[known.name]
    try:
        value = _converted(value, hint)
    except (TypeError, ValueError, OverflowError):
        if isinstance(value, str) and (words := choices(hint)):
            raise did_you_mean(value, words, path) from None
        got = shortened(repr(value), 80)
        raise UserError(f"{path} must be {type_name(hint)}, got {got}") from None
    bounds = known.metadata.get("bounds", {})
    least, most = bounds.get("min", -math.inf), bounds.get("max", math.inf)
    above, below = bounds.get("above", -math.inf), bounds.get("below", math.inf)
    for number in value if isinstance(value, tuple) else (value,):
        if not bounds or not isinstance(number, int | float) or isinstance(number, bool):
            continue
        if not (least <= number <= most and above < number < below):
            got = shortened(repr(number), 80)
            raise UserError(f"{path} must be {_range(bounds)}, got {got}")
    return value


def describe(kind: type) -> list[dict[str, Any]]:
    """Name, type, default, bounds and meaning of every setting, JSON-able."""
    return [
        {
            "name": known.name,
            "type": known.type if isinstance(known.type, str) else _written(known.type),
            "default": default_of(known),
            **known.metadata.get("bounds", {}),
            "doc": known.metadata.get("doc", ""),
        }
        for known in fields(kind)
    ]


def default_of(known: dataclasses.Field[Any]) -> Any:
    if known.default is not MISSING:
        return known.default
    return known.default_factory() if known.default_factory is not MISSING else None


@cache
def hints(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields."""
    return typing.get_type_hints(kind)


def members(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if union else (hint,)


def choices(hint: Any) -> list[str]:
    """The words a setting may be, if it is one of several words (or nothing)."""
    kinds = [one for one in members(hint) if one is not type(None)]
    if len(kinds) > 1 or typing.get_origin(kinds[0]) is not Literal:
        return []
    words = typing.get_args(kinds[0])
    return list(words) if all(isinstance(word, str) for word in words) else []


def plain(value: Any) -> Any:
    """A setting's value as YAML and JSON hold it."""
    if isinstance(value, Checked):
        return value.as_dict()
    if isinstance(value, Path):
        return str(value)
    return [plain(one) for one in value] if isinstance(value, tuple) else value


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their path: `method.lr`."""
    out: dict[str, Any] = {}
    for key, value in config.items():
        inner = isinstance(value, Mapping) and bool(value)
        out |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return out


def type_name(hint: Any) -> str:
    """A type as people say it."""
    if len(members(hint)) > 1:
        return " or ".join(type_name(one) for one in members(hint))
    if isinstance(hint, type) and issubclass(hint, Checked):
        return hint.takes
    if typing.get_origin(hint) is Literal:
        return " or ".join(repr(one) for one in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)
        if inner[1:] == (...,):
            return f"a list of {PLURAL.get(inner[0], type_name(inner[0]))}"
        return f"a list of {len(inner)}: {', '.join(type_name(one) for one in inner)}"
    return WORDS.get(hint, f"a {getattr(hint, '__name__', hint)}")


WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
    type(None): "null",
    dict: "a section with keys",
    Callable: "a function",
    Path: "a path",
}
PLURAL: dict[Any, str] = {int: "whole numbers", float: "numbers", str: "words", Any: "values"}


def _converted(value: Any, hint: Any) -> Any:
    """The value as the type has it, without a loss; TypeError if it is of another kind."""
    numpy = sys.modules.get("numpy")  # values of it exist only where it was imported
    if numpy is not None and isinstance(value, numpy.generic):
        value = value.item()
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if len(members(hint)) > 1:
        for one in inner:
            try:
                return _converted(value, one)
            except (TypeError, ValueError, OverflowError):
                continue
        raise TypeError
    if origin is Literal:
        if any(value == one and type(value) is type(one) for one in inner):
            return value
        raise TypeError
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise TypeError
        each = [inner[0]] * len(value) if inner[1:] == (...,) else inner
        return tuple(_converted(v, one) for v, one in zip(value, each, strict=True))
    if origin is dict or hint is dict:
        if not isinstance(value, Mapping):
            raise TypeError
        return dict(value)
    if isinstance(hint, type) and issubclass(hint, Checked):
        return hint.of(value)
    if hint is Path and isinstance(value, str) and value and "\0" not in value:
        return Path(value)
    if hint is float and type(value) is int:
        return float(value)
    if hint is Any:
        return value
    if hint is float and isinstance(value, float) and not math.isfinite(value):
        raise ValueError
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise TypeError
    return value


def _written(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def _word(value: Any) -> str:
    """A value as it is written in `needs`."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _range(bounds: Mapping[str, float]) -> str:
    words = {"min": "at least", "above": "above", "max": "at most", "below": "below"}
    return " and ".join(f"{words[name]} {bounds[name]:g}" for name in words if name in bounds)


def _path(kind: type, name: str) -> str:
    section = getattr(kind, "section", "")
    return f"{section}.{name}" if section else name
