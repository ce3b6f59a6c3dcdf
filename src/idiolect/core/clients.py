"""One record per client id: what a server remembers of each client, or the clients' private state
while they are away.

Every client that was ever written has a row. Rows lie on the device that computes, in host memory
or in a file; they are handed out on the device in every case, so a method does not know which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from idiolect.core import devices, tree
from idiolect.core.storage import CPU, PIECE, Keep, Layout, RowStore, is_blank, leaf_names
from idiolect.core.tree import Record, Tree

SMALL = 64 << 20  # bytes that need no look at the free memory
SHARE = 0.25  # of the free memory that a table may take before it moves out


class Table:
    """Rows by client id. Those nobody wrote are `default`, or made and kept by it."""

    def __init__(self, default: Record | Callable[[list[int]], Record]):
        self._default = default
        self._keep: Keep = "auto"
        self._place: Keep = "device"
        self._device: torch.device | None = None
        self._most: int | None = None
        self._stores: list[RowStore] = []  # one, unless rows differ in their leaves or shapes

    def settle(self, device: torch.device, keep: Keep = "auto", most: int | None = None) -> None:
        """Where rows are handed out and kept, and how many clients there are. `auto` is the device
        as long as the table is small against its free memory, then the host, then the disk."""
        self._device, self._keep, self._most = device, keep, most
        self._move("device" if keep == "auto" else keep)

    # --- rows ---

    def __getitem__(self, ids: Sequence[int]) -> Record:
        """The rows of `ids` on the device, as copies."""
        ids = list(ids)
        if not ids:
            return {}
        for store in self._stores:
            if (at := store.find(ids)) is not None:
                return store.take(at)
        missing = [i for i in dict.fromkeys(ids) if i not in self]
        if not missing:
            return self._merged(ids)
        if callable(self._default):
            self[missing] = self._default(missing)
            return self[ids]
        if len(missing) == len(set(ids)):
            return self._defaults(len(ids))
        return self._merged(ids)

    def __setitem__(self, ids: Sequence[int], record: Record) -> None:
        ids = [int(i) for i in ids]
        if not ids:
            return
        leaves = {n: x.detach() for n, x in tree.leaves(record).items()}
        if len(set(ids)) < len(ids):  # the last one counts
            last = {i: k for k, i in enumerate(ids)}
            ids, keep = list(last), torch.tensor(list(last.values()))
            leaves = {n: x if is_blank(n) else x[keep.to(x.device)] for n, x in leaves.items()}
        layout = tuple((n, x.shape[1:], x.dtype) for n, x in leaves.items())
        store = self._store(layout, record, leaves)
        self._make_room(store, ids)
        store.put(ids, leaves)
        for other in self._stores:
            if other is not store:
                other.forget(ids)
        self._stores = [s for s in self._stores if s.slots]

    def __contains__(self, client: int) -> bool:
        return any(client in store.slots for store in self._stores)

    def items(self) -> Iterator[tuple[int, Record]]:
        """Every row that was written, in host memory, until the next write: for checkpoints."""
        for store in self._stores:
            yield from store.items()

    def refill(self, rows: Mapping[int, Record]) -> None:
        """Have exactly these rows."""
        self._stores = []
        alike: dict[Any, list[int]] = {}
        for i, row in rows.items():
            layout = tuple((n, x.shape, x.dtype) for n, x in tree.leaves(row).items())
            alike.setdefault(layout, []).append(i)
        for group in alike.values():
            for at in range(0, len(group), PIECE):
                ids = group[at : at + PIECE]
                self[ids] = tree.pile([rows[i] for i in ids])

    def mix(self, weight: Tensor | Sequence[float], ids: Sequence[int]) -> Tree:
        """`sum_j weight[j] * row_j` of tables that hold trees, a piece of the clients at a time."""
        total: Tree = {}
        for at in range(0, len(ids), PIECE):
            rows = self[ids[at : at + PIECE]]
            like = tree.any_leaf(rows)
            share = tree.beside(weight[at : at + PIECE], like).to(like.dtype)
            part = tree.mix(share, rows)
            total = tree.add(total, part) if total else part
        return total

    # --- where rows come from ---

    def _defaults(self, k: int) -> Record:
        assert not callable(self._default)

        def copied(x: Tensor) -> Tensor:
            return x.to(self._device or x.device).expand(k, *x.shape).clone()

        return tree.each(copied, self._default)

    def _merged(self, ids: list[int]) -> Record:
        """Rows from several places; the first decides which leaves there are."""
        places: list[tuple[list[int], Callable[[list[int]], Record]]] = []
        for store in self._stores:
            held = [k for k, i in enumerate(ids) if i in store.slots]
            if held:
                places.append((held, store.read))
        new = [k for k, i in enumerate(ids) if i not in self]
        if new:
            places.append((new, lambda some: self._defaults(len(some))))
        places.sort(key=lambda place: place[0][0])
        parts = [(at, read([ids[k] for k in at])) for at, read in places]
        given = [(torch.tensor(at), tree.leaves(part)) for at, part in parts]
        merged: Tree = {}
        for name, like in given[0][1].items():
            if not is_blank(name):
                whole = like.new_empty(len(ids), *like.shape[1:])
                for at, part in given:
                    whole.index_copy_(0, at.to(whole.device), part[name])
                merged[name] = whole
        return tree.each(merged.__getitem__, leaf_names(parts[0][1]))  # type: ignore[arg-type]

    def _store(self, layout: Layout, record: Record, leaves: Tree) -> RowStore:
        for store in self._stores:
            if store.layout == layout:
                return store
        if self._device is None:  # as the first rows
            real = [x.device for n, x in leaves.items() if not is_blank(n)]
            self._device = real[0] if real else None
        store = RowStore(layout, leaf_names(record), self._device or CPU, self._place)
        self._stores.append(store)
        return store

    def _make_room(self, store: RowStore, ids: list[int]) -> None:
        needed = store.needs(ids)
        if needed <= store.capacity:
            return
        capacity = max(needed, 2 * store.capacity)
        if self._most is not None:
            capacity = max(needed, min(capacity, self._most))
        if self._keep == "auto":
            self._move(self._roomy(sum(s.nbytes for s in self._stores), store, capacity))
        store.grow(capacity)

    def _roomy(self, held: int, store: RowStore, capacity: int) -> Keep:
        """The first place, from here outwards, in which the table is small."""
        total = held - store.nbytes + capacity * store.row_bytes
        if total <= SMALL:
            return self._place
        device = store.device
        if self._place == "device":
            if total <= SHARE * (devices.free_memory(device) + held):
                return "device"
            if device.type == "cpu":
                return "disk"
        if self._place == "disk":
            return "disk"
        mine = held if self._place == "host" else 0
        return "host" if total <= 2 * SHARE * (devices.free_memory(CPU) + mine) else "disk"

    def _move(self, place: Keep) -> None:
        if place != self._place:
            self._place = place
            for store in self._stores:
                store.move(place)
