"""One record per client id: what a server remembers of each client, or the clients' private state
while they are away.

The rows of a table lie in one tensor `[slots, ...]` per leaf, with a slot for every client that was
ever written. They live on the device that computes, in host memory, or in memory-mapped files; they
are handed out on the device in every case, so a method does not know which.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from idiolect.core import devices, tree
from idiolect.core.tree import Record, Tree
from idiolect.errors import UserError

Keep = Literal["auto", "device", "host", "disk"]
KEEP: tuple[str, ...] = get_args(Keep)
SMALL = 64 << 20  # bytes that need no look at the free memory
SHARE = 0.25  # of the free memory that a table may take before it moves out
PIECE = 256  # rows handled at once where all clients are

Layout = tuple[tuple[str, torch.Size, torch.dtype], ...]
CPU = torch.device("cpu")


class Table:
    """Rows by client id. Those nobody wrote are `default`, or made and kept by it."""

    def __init__(self, default: Record | Callable[[list[int]], Record]):
        self._default = default
        self._keep: Keep = "auto"
        self._place: Keep = "device"
        self._device: torch.device | None = None
        self._most: int | None = None
        self._shelves: list[Shelf] = []  # one, unless rows differ in their leaves or shapes

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
        for shelf in self._shelves:
            if (at := shelf.find(ids)) is not None:
                return shelf.take(at)
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
            leaves = {n: x if _blank(n) else x[keep.to(x.device)] for n, x in leaves.items()}
        layout = tuple((n, x.shape[1:], x.dtype) for n, x in leaves.items())
        shelf = self._shelf(layout, record, leaves)
        self._make_room(shelf, ids)
        shelf.put(ids, leaves)
        for other in self._shelves:
            if other is not shelf:
                other.forget(ids)
        self._shelves = [s for s in self._shelves if s.slots]

    def __contains__(self, client: int) -> bool:
        return any(client in shelf.slots for shelf in self._shelves)

    def items(self) -> Iterator[tuple[int, Record]]:
        """Every row that was written, in host memory, until the next write: for checkpoints."""
        for shelf in self._shelves:
            yield from shelf.items()

    def refill(self, rows: Mapping[int, Record]) -> None:
        """Have exactly these rows."""
        self._shelves = []
        alike: dict[Any, list[int]] = {}
        for i, row in rows.items():
            layout = tuple((n, x.shape, x.dtype) for n, x in tree.leaves(row).items())
            alike.setdefault(layout, []).append(i)
        for group in alike.values():
            for ids in _pieces(group):
                self[ids] = tree.pile([rows[i] for i in ids])

    def mix(self, weight: Tensor | Sequence[float], ids: Sequence[int]) -> Tree:
        """`sum_j weight[j] * row_j` of tables that hold trees, a piece of the clients at a time."""
        total: Tree = {}
        for at in range(0, len(ids), PIECE):
            rows = self[ids[at : at + PIECE]]
            like = next(iter(rows.values()))
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
        for shelf in self._shelves:
            held = [k for k, i in enumerate(ids) if i in shelf.slots]
            if held:
                places.append((held, shelf.read))
        new = [k for k, i in enumerate(ids) if i not in self]
        if new:
            places.append((new, lambda some: self._defaults(len(some))))
        places.sort(key=lambda place: place[0][0])
        parts = [(at, read([ids[k] for k in at])) for at, read in places]
        given = [(torch.tensor(at), tree.leaves(part)) for at, part in parts]
        merged: Tree = {}
        for name, like in given[0][1].items():
            if not _blank(name):
                whole = like.new_empty(len(ids), *like.shape[1:])
                for at, part in given:
                    whole.index_copy_(0, at.to(whole.device), part[name])
                merged[name] = whole
        return tree.each(merged.__getitem__, _names(parts[0][1]))  # type: ignore[arg-type]

    def _shelf(self, layout: Layout, record: Record, leaves: Tree) -> Shelf:
        for shelf in self._shelves:
            if shelf.layout == layout:
                return shelf
        if self._device is None:  # as the first rows
            real = [x.device for n, x in leaves.items() if not _blank(n)]
            self._device = real[0] if real else None
        shelf = Shelf(layout, _names(record), self._device or CPU, self._place)
        self._shelves.append(shelf)
        return shelf

    def _make_room(self, shelf: Shelf, ids: list[int]) -> None:
        needed = shelf.needs(ids)
        if needed <= shelf.capacity:
            return
        capacity = max(needed, 2 * shelf.capacity)
        if self._most is not None:
            capacity = max(needed, min(capacity, self._most))
        if self._keep == "auto":
            self._move(self._roomy(sum(s.nbytes for s in self._shelves), shelf, capacity))
        shelf.grow(capacity)

    def _roomy(self, held: int, shelf: Shelf, capacity: int) -> Keep:
        """The first place, from here outwards, in which the table is small."""
        total = held - shelf.nbytes + capacity * shelf.row_bytes
        if total <= SMALL:
            return self._place
        device = shelf.device
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
            for shelf in self._shelves:
                shelf.move(place)


class Shelf:
    """Rows that are alike: one tensor `[slots, ...]` per leaf."""

    def __init__(self, layout: Layout, names: Record, device: torch.device, place: Keep):
        self.layout, self.names, self.device, self.place = layout, names, device, place
        self.slots: dict[int, int] = {}  # by client
        self.capacity = 0
        self._spare: list[int] = []
        self._store: dict[str, Tensor] = {}
        self._files: dict[str, MappedFile] = {}
        self._late: tuple[torch.cuda.Event | None, Tensor, Tree] | None = None  # a write under way
        self._last: tuple[list[int], Tensor] = ([], torch.empty(0, dtype=torch.int64))
        self._real = [(n, s, d) for n, s, d in layout if not _blank(n)]
        self.row_bytes = sum(s.numel() * d.itemsize for _, s, d in self._real)

    @property
    def nbytes(self) -> int:
        return self.capacity * self.row_bytes

    @property
    def _away(self) -> bool:
        """Rows must travel to the device."""
        return self.place != "device" and self.device.type == "cuda"

    def find(self, ids: list[int]) -> Tensor | None:
        """The slots of `ids`, if all are here."""
        if ids == self._last[0]:
            return self._last[1]
        try:
            slots = [self.slots[i] for i in ids]
        except KeyError:
            return None
        return self._remember(ids, slots)

    def _remember(self, ids: list[int], slots: list[int]) -> Tensor:
        at = torch.tensor(slots, dtype=torch.int64)
        if self.place == "device" and self.device.type == "cuda":
            at = at.pin_memory().to(self.device, non_blocking=True)
        self._last = (ids, at)
        return at

    def read(self, ids: list[int]) -> Record:
        at = self.find(ids)
        assert at is not None
        return self.take(at)

    def take(self, at: Tensor) -> Record:
        """Copies of the rows in these slots, on the device."""
        self._settled()
        got = {n: self._fetched(self._store[n], at) for n, _, _ in self._real}
        return tree.each(got.__getitem__, self.names)  # type: ignore[arg-type]

    def _fetched(self, store: Tensor, at: Tensor) -> Tensor:
        if not self._away:
            return store.index_select(0, at)
        got = torch.empty(len(at), *store.shape[1:], dtype=store.dtype, device=self.device)
        devices.gather(store, at, got)
        return got

    def put(self, ids: list[int], leaves: Tree) -> None:
        """Write rows; there must be room for them."""
        self._settled()
        at = self.find(ids)
        if at is None:
            for i in ids:
                if i not in self.slots:
                    self.slots[i] = self._spare.pop() if self._spare else len(self.slots)
            at = self._remember(ids, [self.slots[i] for i in ids])
        if not self._away:
            for n, _, _ in self._real:
                self._store[n].index_copy_(0, at, leaves[n].to(self._store[n].device))
            return
        sent: Tree = {}
        for n, shape, dtype in self._real:
            x = leaves[n][:1] if leaves[n].stride(0) == 0 else leaves[n]  # one row for all
            sent[n] = devices.pinned_buffer((len(x), *shape), dtype).copy_(x, non_blocking=True)
        arrived = None
        if self.device.type == "cuda":
            arrived = torch.cuda.Event()
            arrived.record(torch.cuda.current_stream(self.device))
        self._late = (arrived, at, sent)

    def _settled(self) -> None:
        """Rows that were on their way from the device are in their slots."""
        if self._late is None:
            return
        arrived, at, sent = self._late
        self._late = None
        if arrived is not None:
            arrived.synchronize()
        for n, x in sent.items():
            self._store[n].index_copy_(0, at, x.expand(len(at), *x.shape[1:]))

    def forget(self, ids: Iterable[int]) -> None:
        for i in ids:
            if i in self.slots:
                self._spare.append(self.slots.pop(i))
                self._last = ([], self._last[1])

    def needs(self, ids: Iterable[int]) -> int:
        """Slots there must be to write `ids`."""
        new = sum(i not in self.slots for i in ids)
        return len(self.slots) + max(len(self._spare), new)

    def items(self) -> Iterator[tuple[int, Record]]:
        self._settled()
        host = {n: x.cpu() for n, x in self._store.items()}
        for i, slot in self.slots.items():
            row = {n: x[slot] for n, x in host.items()}
            yield i, tree.each(row.__getitem__, self.names)  # type: ignore[arg-type]

    def grow(self, capacity: int) -> None:
        self._settled()
        used = len(self.slots) + len(self._spare)
        for n, shape, dtype in self._real:
            old = self._store.get(n)
            self._store[n] = self._allocated(n, capacity, shape, dtype)
            if old is not None and self.place != "disk":
                self._store[n][:used].copy_(old[:used])
        self.capacity = capacity

    def move(self, place: Keep) -> None:
        self._settled()
        used, old = len(self.slots) + len(self._spare), self._store
        self.place, self._store, self._files = place, {}, {}
        self._last = ([], self._last[1])
        if self.capacity:
            for n, shape, dtype in self._real:
                self._store[n] = self._allocated(n, self.capacity, shape, dtype)
                self._store[n][:used].copy_(old.pop(n)[:used])

    def _allocated(self, name: str, slots: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        size = slots * shape.numel() * dtype.itemsize
        if self.place != "disk" or not size:
            where = self.device if self.place == "device" else CPU
            return torch.empty(slots, *shape, dtype=dtype, device=where)
        file = self._files.setdefault(name, MappedFile())
        return file.mapped(size).view(dtype).view(slots, *shape)


class MappedFile:
    """A nameless file in the temporary directory: gone when it is closed, however that happens."""

    def __init__(self) -> None:
        try:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
        except OSError as error:
            raise _no_disk(error, 0) from None
        weakref.finalize(self, self._file.close)

    def mapped(self, size: int) -> Tensor:
        """The file as bytes, made longer if needed; what was in it stays."""
        try:
            _reserve(self._file.fileno(), size)
            return torch.frombuffer(mmap.mmap(self._file.fileno(), size), dtype=torch.uint8)
        except (OSError, ValueError) as error:
            raise _no_disk(error, size) from None


def _reserve(file: int, size: int) -> None:
    """Blocks on the disk now: a page that finds none later would end the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    zeros = bytes(1 << 20)
    at = os.fstat(file).st_size
    while at < size:
        at += os.pwrite(file, zeros[: size - at], at)


def _no_disk(error: Exception, size: int) -> UserError:
    reason = getattr(error, "strerror", None) or str(error)
    return UserError(
        f"cannot keep clients' state on disk ({-(-size // 2**20)} MiB in {_folder()}): {reason}; "
        "set TMPDIR to a directory with room, or use --keep host"
    )


def _folder() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:
        return "the temporary directory"


def _blank(name: str) -> bool:
    """Whether this stands for an empty part of a record (`tree.leaves`)."""
    return name.endswith("/")


def _names(record: Mapping[str, Any], prefix: str = "") -> Record:
    """The record with the flat name of every leaf in its place."""
    return {
        k: _names(v, f"{prefix}{k}/") if isinstance(v, Mapping) else f"{prefix}{k}"
        for k, v in record.items()
    }


def _pieces(ids: list[int]) -> Iterator[list[int]]:
    for at in range(0, len(ids), PIECE):
        yield ids[at : at + PIECE]
