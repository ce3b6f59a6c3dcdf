"""Settings that a function declares by its parameters: their types and defaults are checked like
those of `hyper`."""

import inspect
import typing
from collections.abc import Callable, Collection
from dataclasses import Field
from typing import Any

from idiolect.core.fields import hyper
from idiolect.errors import UserError


def settings_of(
    function: Callable[..., Any], given: Collection[str], what: str
) -> list[tuple[str, Any, Field[Any]]]:
    """Name, type and field of every parameter besides those that are `given`; each must have a
    default."""
    try:
        hints, takes = typing.get_type_hints(function), inspect.signature(function).parameters
    except (TypeError, ValueError, NameError, AttributeError) as error:
        raise UserError(f"{what}: its parameters cannot be read: {error}") from None
    made: list[tuple[str, Any, Field[Any]]] = []
    for name, one in takes.items():
        if name in given:
            continue
        if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            raise UserError(f"{what} takes *{name}; write its settings out, each with a default")
        if one.default is inspect.Parameter.empty:
            raise UserError(
                f"{what}: its parameter {name} has no default; give it one (it is given "
                f"{', '.join(given)} and its settings)"
            )
        kind = Any if one.default is None else type(one.default)
        made.append((name, hints.get(name, kind), hyper(one.default, "")))
    return made
