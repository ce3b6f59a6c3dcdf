"""A split of the user's own, or of an installed package: a class, or a function of a pool.

def halves(pool, seed, clients, head: int = 5):
    return [(train_rows, test_rows), …]          # one per client, or a dict by their names
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import make_dataclass
from typing import Any

import numpy as np

from idiolect.core import own_code
from idiolect.core.registry import declared, renamed
from idiolect.core.signature import settings_of
from idiolect.data.pool import Pool
from idiolect.data.splits.base import Divided, Split
from idiolect.errors import UserError

GIVEN = ("pool", "seed", "clients")  # what a function of this kind may take besides its settings


def own_split(found: Any, name: str) -> type[Split]:
    """The split of this name: `found` is a subclass of Split, or a function."""
    what = f"split '{own_code.called(name)}'"
    if inspect.isfunction(found):
        return _of_function(found, name, what)
    if not isinstance(found, type) or not issubclass(found, Split):
        raise UserError(f"{what} is neither a function nor a subclass of idiolect's Split")
    kind = declared(found, Split, what)
    if kind.divide is Split.divide:
        raise UserError(f"{what} lacks divide")
    return renamed(kind, name)


def _of_function(function: Callable[..., Any], name: str, what: str) -> type[Split]:
    settings = settings_of(function, GIVEN, what)
    takes = inspect.signature(function).parameters

    def divide(self: Split, pool: Pool, seed: int) -> Divided:
        given = {"pool": pool, "seed": seed}
        if "clients" in takes:
            given["clients"] = self.n
        given = {key: value for key, value in given.items() if key in takes}
        return _rows(function(**given, **{key: getattr(self, key) for key, *_ in settings}))

    facts = {
        "name": name,
        "by_class": False,
        "divide": divide,
        "__doc__": function.__doc__ or "Your own function.",
        "__module__": function.__module__,
    }
    made = make_dataclass(function.__name__, settings, bases=(Split,), frozen=True, namespace=facts)
    kind: type[Split] = made
    return kind


def _rows(given: Any) -> Divided:
    """Lists of row numbers as arrays; what is something else stays, and is refused later."""
    if isinstance(given, list | tuple):
        given = {str(i): pair for i, pair in enumerate(given)}
    if not isinstance(given, Mapping):
        return given
    return {str(name): _pair(pair) for name, pair in given.items()}


def _pair(pair: Any) -> Any:
    try:
        return tuple(np.asarray(rows).astype(np.int64, casting="safe") for rows in pair)
    except (TypeError, ValueError):
        return pair
