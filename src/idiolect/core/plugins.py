"""Methods, splits, models and metrics of other packages, found by their entry points.

    [project.entry-points."idiolect.methods"]
    halfway = "my_package.halfway:Halfway"

Whoever installed a package let it in, so its code needs no further permission. It is imported when
it is asked for by name, or listed.
"""

import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from idiolect.core import own_code
from idiolect.core.text import reason, shortened
from idiolect.errors import UserError


def found(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of a group such as `idiolect.methods`, by name. Nothing is imported."""
    return _found(group, tuple(sys.path))


@cache
def _found(group: str, path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    points = sorted(entry_points(group=group), key=lambda point: (point.name, package(point)))
    return {point.name: point for point in reversed(points)}  # of two, the first package's


def package(point: EntryPoint) -> str:
    """Who brings it: the name and version of the package."""
    dist = point.dist
    return "an unnamed package" if dist is None else shortened(f"{dist.name} {dist.version}", 80)


def load(point: EntryPoint, what: str) -> Any:
    """What an entry point names; `what` it should be: 'method'."""
    try:
        loaded = point.load()
    except (Exception, SystemExit) as error:  # code of others may fail in every way
        raise broken(point, what, f"{type(error).__name__}: {reason(error)}") from None
    own_code.is_user_code(getattr(loaded, "__module__", point.module), package(point))
    return loaded


def broken(point: EntryPoint, what: str, why: str) -> UserError:
    return UserError(
        f"{what} '{shortened(point.name, 80)}' of package {package(point)} cannot be used: {why}; "
        "mend or uninstall the package"
    )
