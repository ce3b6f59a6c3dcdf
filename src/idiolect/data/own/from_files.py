"""Your own files as a federation, from Python."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from idiolect.data.federation import Federation
from idiolect.errors import UserError


def federation(
    path: str | Path, split: Mapping[str, Any] | str | None, seed: int, options: Mapping[str, Any]
) -> Federation:
    """The files read with these options of `data:`, divided by their own clients unless a split is
    given."""
    from idiolect.data.build import build
    from idiolect.data.own.own_files import own_files

    own = own_files({**options, "name": str(path)})
    if split is None and not own.names_clients:
        raise UserError(
            f"data '{own.name}' names no clients; give client=COLUMN, or a split such as"
            ' {"name": "dirichlet", "clients": 10}'
        )
    chosen = {"name": split} if isinstance(split, str) else dict(split or {"name": "natural"})
    return build(own.resolved(), chosen, seed)
