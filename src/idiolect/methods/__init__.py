"""One file per method. A file of this folder that defines a method is in the registry."""

import pkgutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any

from idiolect.core import registry
from idiolect.core.method import Method
from idiolect.core.own_code import called
from idiolect.errors import UserError
from idiolect.methods.fine_tuning import SUFFIX, fine_tuned


class MethodRegistry(registry.Registry):
    """Methods by name. `NAME_ft` is there for every NAME, listed or not: NAME, fine-tuned."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or self._to_tune(name) is not None

    def __missing__(self, name: str) -> type[Method]:
        base = self._to_tune(name)
        return super().__missing__(name) if base is None else fine_tuned(base)

    def accepted(self, found: Any, name: str) -> type[Method]:
        kind = registry.declared(found, Method, f"method '{called(name)}'")
        if type(kind.rounds_default) is not int or kind.rounds_default < 1:
            raise UserError(f"method '{called(name)}': rounds_default must be a whole number")
        return kind

    def _to_tune(self, name: object) -> type[Method] | None:
        base = str(name).removesuffix(SUFFIX)
        if base == str(name) or base.endswith(SUFFIX) or not super().__contains__(base):
            return None
        return self[base]


def defined() -> Iterator[type[Method]]:
    """The methods of all files: classes with a name of their own."""
    for file in pkgutil.iter_modules(__path__):
        if file.ispkg:
            continue
        module = import_module(f"{__name__}.{file.name}")
        for value in vars(module).values():
            here = isinstance(value, type) and value.__module__ == module.__name__
            if here and issubclass(value, Method) and "name" in vars(value):
                yield value


def registered(kinds: Iterable[type[Method]]) -> MethodRegistry:
    """By name, in order of year and name. Two methods of one name are an error."""
    found = MethodRegistry("method", "idiolect.methods")
    for kind in sorted(kinds, key=lambda kind: (kind.year, kind.name)):
        other = found.get(kind.name)
        if other is not None:
            both = f"{other.__module__}.{other.__name__} and {kind.__module__}.{kind.__name__}"
            raise ValueError(f"two methods are named {kind.name!r}: {both}")
        found[kind.name] = kind
    return found


REGISTRY = registered(defined())


def build(section: Mapping[str, Any] | str, allow_code: Collection[str] = ()) -> Method:
    """A method from its name and hyperparameters. Your own, `file.py:Class`, is loaded only if
    `allow_code` names it too: a section may come from a file of someone else."""
    if isinstance(section, Mapping) and section.get("name") in REGISTRY:
        section = _with_its_own_update(section)
    made: Method = registry.named(REGISTRY, section, "method", allow_code)
    return made


def _with_its_own_update(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """Methods that prescribe how clients step have no choice of it: say what they do."""
    kind, told = REGISTRY[section["name"]], section.get("optimizer")
    if told is None or "optimizer" in {known.name for known in fields(kind)}:
        return section
    only = getattr(kind, "optimizer", None)
    if told == only:
        return {key: value for key, value in section.items() if key != "optimizer"}
    allows = f"allows {only} only" if only else "has no method.optimizer"
    raise UserError(f"{kind.name} prescribes its own update and {allows}; leave out {told!r}")


__all__ = ["REGISTRY", "Method", "build"]
