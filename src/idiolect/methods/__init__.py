"""One file per method; this is the registry by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from idiolect.core.fields import named
from idiolect.core.method import Method
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
    """A method from its name and hyperparameters."""
    return named(REGISTRY, section, "method")


__all__ = ["REGISTRY", "Method", "build"]
