"""What is chosen by name in a config: methods, datasets, splits and models."""

import pkgutil
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import Field, asdict, dataclass
from importlib import import_module
from typing import Any, ClassVar, Self

from idiolect.core import own_code, plugins
from idiolect.core.fields import Checked, describe, make
from idiolect.core.text import reason
from idiolect.errors import UserError, did_you_mean


class Registry(dict[str, type[Any]]):
    """Classes of one kind by name. Walking through it gives those that come with Idiolect. A name
    is also looked up among the entry points of installed packages, and among own code, `file.py:
    Class`, that was admitted."""

    def __init__(self, what: str, group: str = ""):
        """`group`: of entry points; a kind without one cannot be extended."""
        super().__init__()
        self.what, self.group = what, group  # 'method', 'idiolect.methods'
        self.own: dict[str, type[Any]] = {}  # by whole name
        self._loaded: dict[str, type[Any]] = {}  # of packages

    def accepted(self, found: Any, name: str) -> type[Any]:
        """The class to use for what was found under a name; UserError if it is of another kind."""
        raise NotImplementedError

    def admit(self, name: str, allow_code: Collection[str]) -> type[Any]:
        """Own code, loaded if `allow_code` names it; from now on its whole name means it."""
        whole = own_code.whole(name)
        self.own[whole] = self.accepted(own_code.load_any(name, self.what, allow_code), whole)
        return self.own[whole]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.own or name in self._points

    def __missing__(self, name: str) -> type[Any]:
        if name in self.own:
            return self.own[name]
        if name not in self._points:
            raise KeyError(name)
        if name not in self._loaded:
            point = self._points[name]
            found = plugins.load(point, self.what)
            try:
                self._loaded[name] = self.accepted(found, name)
            except UserError as error:
                raise plugins.broken(point, self.what, str(error)) from None
        return self._loaded[name]

    @property
    def names(self) -> list[str]:
        """All that can be given, those of packages too."""
        return sorted({*self, *self._points})

    def entries(self) -> Iterator[tuple[str, type[Any], str]]:
        """Name, class and package of all there is; the package is "" for what comes with Idiolect.
        What cannot be loaded is a warning."""
        ours = {n: c for n, c in self.items() if n not in self._points or _is_ours(c)}
        for name, kind in ours.items():
            yield name, kind, ""
        for name, point in self._points.items():
            try:
                if name in ours:
                    raise plugins.broken(point, self.what, "Idiolect has one of that name")
                yield name, self[name], plugins.package(point)
            except UserError as error:
                warnings.warn(str(error), stacklevel=2)

    @property
    def _points(self) -> Mapping[str, Any]:
        return plugins.found(self.group) if self.group else {}


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "idiolect"


def named(
    registry: Registry,
    section: Mapping[str, Any] | str,
    what: str,
    allow_code: Collection[str] = (),
) -> Any:
    """{"name": "shards", "clients": 5} -> Shards(clients=5). Own code is loaded only if
    `allow_code` names it: a section may come from a file of someone else."""
    options = {"name": section} if isinstance(section, str) else dict(section)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise UserError(f"{what} needs a name, one of: {', '.join(registry.names)}")
    if own_code.is_own(name) and registry.group:
        return make(registry.admit(name, allow_code), options, f"{what} '{own_code.called(name)}'")
    if name not in registry:
        raise did_you_mean(name, registry.names, what)
    return make(registry[name], options, f"{what} '{name}'")


def declared(found: Any, base: type, what: str) -> type[Any]:
    """A class of someone's own, if it is one of this kind and its settings would work."""
    if not isinstance(found, type) or not issubclass(found, base):
        raise UserError(
            f"{what} is not a class of the kind that is needed: a subclass of idiolect's "
            f"{base.__name__}"
        )
    kind: type[Any] = found
    loose = [n for n, value in vars(kind).items() if isinstance(value, Field)]
    if "__dataclass_fields__" not in vars(kind) and loose:
        raise UserError(
            f"{what} declares {loose[0]} but is no dataclass; write "
            "@dataclass(frozen=True) above it"
        )
    missing = sorted(getattr(kind, "__abstractmethods__", ()))
    if missing:
        raise UserError(f"{what} lacks {', '.join(missing)}")
    try:
        kind()  # every setting needs a default, of the type and within the bounds it declares
    except Exception as error:
        raise UserError(f"{what} cannot be made with its defaults: {reason(error)}") from None
    return kind


def renamed(kind: type[Any], name: str) -> type[Any]:
    """The class under the name by which it was found, whatever it calls itself."""
    if vars(kind).get("name") == name:
        return kind
    facts = {"name": name, "__doc__": kind.__doc__, "__module__": kind.__module__}
    made: type[Any] = dataclass(frozen=True)(type(kind.__name__, (kind,), facts))
    return made


@dataclass(frozen=True)
class Named(Checked):
    """Base of a kind, such as Split. A subclass with a `name` is found by that name: declaring the
    class registers it. The kind gives the `section` of the config and an empty `registry`."""

    name: ClassVar[str]
    registry: ClassVar[Registry]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls) or own_code.is_own(cls.name) or own_code.from_file(cls):
            return  # own code is called by where it lies
        first = cls.registry.setdefault(cls.name, cls)
        if first is not cls:
            both = " and ".join(f"{one.__module__}.{one.__qualname__}" for one in (first, cls))
            raise TypeError(f"{cls.section} '{cls.name}' is declared twice, by {both}; rename one")

    @classmethod
    def from_section(
        cls, section: Mapping[str, Any] | str, allow_code: Collection[str] = ()
    ) -> Self:
        """{"name": "shards", "clients": 5} -> Shards(clients=5)."""
        made: Self = named(cls.registry, section, cls.section, allow_code)
        return made

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
