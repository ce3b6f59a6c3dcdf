"""Clients that a function of the user's own returns."""

from dataclasses import dataclass

from idiolect.core.fields import hyper
from idiolect.data.pool import Pool
from idiolect.data.splits.base import Divided, Split
from idiolect.errors import UserError


@dataclass(frozen=True)
class OwnClients(Split):
    """The clients of your own function (--data file.py:function), as it returns them."""

    clients: int | None = hyper(None, "decided by the function", min=1)

    name = "own"

    def divide(self, pool: Pool, seed: int) -> Divided:
        raise UserError("split 'own' is for --data file.py:function; choose another split")
