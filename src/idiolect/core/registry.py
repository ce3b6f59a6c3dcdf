"""What is chosen by name in a config: datasets, splits and models."""

import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, ClassVar, Self

from idiolect.core.fields import Checked, describe, named


@dataclass(frozen=True)
class Named(Checked):
    """Base of a kind, such as Split. A subclass with a `name` is found by that name: declaring the
    class registers it. The kind gives the `section` of the config and an empty `registry`."""

    name: ClassVar[str]
    registry: ClassVar[dict[str, type[Any]]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            return
        first = cls.registry.setdefault(cls.name, cls)
        if first is not cls:
            both = " and ".join(f"{one.__module__}.{one.__qualname__}" for one in (first, cls))
            raise TypeError(f"{cls.section} '{cls.name}' is declared twice, by {both}; rename one")

    @classmethod
    def from_section(cls, section: Mapping[str, Any] | str) -> Self:
        """{"name": "shards", "clients": 5} -> Shards(clients=5)."""
        return named(cls.registry, section, cls.section)

    def resolved(self) -> dict[str, Any]:
        """The config section with every setting filled in, in values that YAML and JSON have."""
        options = asdict(self).items()
        return {"name": self.name, **{k: list(v) if type(v) is tuple else v for k, v in options}}

    @classmethod
    def about(cls) -> dict[str, Any]:
        """Name, description and settings, JSON-able."""
        text = " ".join((cls.__doc__ or "").split())
        return {"name": cls.name, "what": text, "options": describe(cls)}


def import_modules(package: str, path: Iterable[str]) -> None:
    """Import every module of a package, so that the classes in them are registered."""
    for module in pkgutil.iter_modules(path):
        import_module(f"{package}.{module.name}")
