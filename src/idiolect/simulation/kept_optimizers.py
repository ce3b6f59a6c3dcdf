"""What the clients' optimizers remember from round to round (`method.keep_optimizer`): private to
each client, saved with a checkpoint. A method may train several times in a round; every call has a
table of its own, in which a client that never made it has zeros, as a new optimizer has."""

from collections.abc import Sequence

import torch

from idiolect.core import tree
from idiolect.core.clients import Table
from idiolect.core.storage import Keep
from idiolect.core.tree import Record
from idiolect.simulation.server_state import by_id, by_name

PART = "optimizer"  # of a checkpoint


class KeptOptimizers:
    """Rows by client, for every call of `Local.sgd` that keeps its optimizer."""

    def __init__(self, device: torch.device, keep: Keep, clients: int):
        self._place = (device, keep, clients)
        self._tables: dict[str, Table] = {}

    def __getitem__(self, ids: Sequence[int]) -> Record:
        return {call: table[ids] for call, table in self._tables.items()}

    def __setitem__(self, ids: Sequence[int], kept: Record) -> None:
        for call, rows in kept.items():
            self._table(call, tree.row(rows, 0))[ids] = rows

    def _table(self, call: str, like: Record) -> Table:
        if call not in self._tables:
            table = self._tables[call] = Table(tree.each(torch.zeros_like, like))
            table.settle(*self._place)
        return self._tables[call]

    def state(self) -> Record:
        """For a checkpoint; nothing where nothing is kept."""
        tables = {call: by_name(table.items()) for call, table in self._tables.items()}
        return {PART: tables} if tables else {}

    def restore(self, state: Record) -> None:
        """Continue from `state()`."""
        self._tables = {}
        for call, rows in state.get(PART, {}).items():
            known = by_id(rows)
            self._table(call, next(iter(known.values()))).refill(known)
