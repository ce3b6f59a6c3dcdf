"""Where the rows of a client table lie: on the device, in host memory or in a file."""

import errno
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from idiolect.core import devices, tree
from idiolect.core.tree import Record, Tree
from idiolect.errors import UserError

Keep = Literal["auto", "device", "host", "disk"]
KEEP: tuple[str, ...] = get_args(Keep)
Layout = tuple[tuple[str, torch.Size, torch.dtype], ...]
CPU = torch.device("cpu")
PIECE = 256  # rows handled at once where all are
MOST_PARTS = 1024  # of a row that one call reads or writes: IOV_MAX


class RowStore:
    """Rows that are alike, in slots by client."""

    def __init__(self, layout: Layout, names: Record, device: torch.device, place: Keep):
        self.layout, self.names, self.device, self.place = layout, names, device, place
        self.slots: dict[int, int] = {}  # by client
        self.capacity = 0
        self._spare: list[int] = []
        self._late: tuple[torch.cuda.Event | None, Tensor, Tree] | None = None  # a write under way
        self._last: tuple[list[int], Tensor] = ([], torch.empty(0, dtype=torch.int64))
        self._real = tuple((n, s, d) for n, s, d in layout if not is_blank(n))
        self.row_bytes = sum(s.numel() * d.itemsize for _, s, d in self._real)
        self._rows = self._made(place)

    def _made(self, place: Keep) -> "MemoryRows | FileRows":
        if place == "disk":
            return FileRows(self._real)
        return MemoryRows(self._real, self.device if place == "device" else CPU)

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
        if self.place == "device":
            at = devices.to_device(at, self.device)
        self._last = (ids, at)
        return at

    def read(self, ids: list[int]) -> Record:
        at = self.find(ids)
        assert at is not None
        return self.take(at)

    def take(self, at: Tensor) -> Record:
        """Copies of the rows in these slots, on the device."""
        self._settled()
        got = {n: self._room(len(at), s, d) for n, s, d in self._real}
        self._rows.read(at, got)
        got = {n: x.to(self.device, non_blocking=True) for n, x in got.items()}
        return tree.each(got.__getitem__, self.names)  # type: ignore[arg-type]

    def _room(self, rows: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """For rows on their way between their place and the device."""
        if self._away:
            return devices.pinned_buffer((rows, *shape), dtype)
        return torch.empty(rows, *shape, dtype=dtype, device=self.device)

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
            self._rows.write(at, leaves)
            return
        sent: Tree = {}
        for n, shape, dtype in self._real:
            x = leaves[n][:1] if leaves[n].stride(0) == 0 else leaves[n]  # one row for all
            sent[n] = self._room(len(x), shape, dtype).copy_(x, non_blocking=True)
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
        self._rows.write(at, {n: x.expand(len(at), *x.shape[1:]) for n, x in sent.items()})

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
        for i, row in zip(self.slots, self._rows.each(self.slots.values()), strict=True):
            yield i, tree.each(row.__getitem__, self.names)  # type: ignore[arg-type]

    def grow(self, capacity: int) -> None:
        self._settled()
        self.capacity = capacity
        self._rows.grow(capacity)

    def move(self, place: Keep) -> None:
        self._settled()
        old, self.place, self._last = self._rows, place, ([], self._last[1])
        self._rows = self._made(place)
        self._rows.grow(self.capacity)
        rows = zip(self.slots.values(), old.each(self.slots.values()), strict=True)
        while some := list(islice(rows, PIECE)):
            slots = torch.tensor([slot for slot, _ in some])
            self._rows.write(slots, tree.pile([row for _, row in some]))


class MemoryRows:
    """One tensor `[slots, ...]` per leaf."""

    def __init__(self, layout: Layout, device: torch.device):
        self.layout, self.device = layout, device
        self.leaves: Tree = {}

    def grow(self, slots: int) -> None:
        for n, shape, dtype in self.layout if slots else ():
            new = torch.empty(slots, *shape, dtype=dtype, device=self.device)
            if (old := self.leaves.pop(n, None)) is not None:
                new[: len(old)] = old
            self.leaves[n] = new

    def read(self, at: Tensor, out: Tree) -> None:
        for n, x in out.items():
            torch.index_select(self.leaves[n], 0, at, out=x)

    def write(self, at: Tensor, leaves: Tree) -> None:
        for n, x in self.leaves.items():
            x.index_copy_(0, at.to(x.device), leaves[n].to(x.device))

    def each(self, slots: Iterable[int]) -> Iterator[Tree]:
        """Row by row, in host memory: as they lie there, else copies of some at once."""
        for some in _pieces(slots):
            at = some.to(self.device)
            host = self.device.type == "cpu"
            rows = {n: x if host else x[at].cpu() for n, x in self.leaves.items()}
            for k, slot in enumerate(some.tolist()):
                yield {n: x[slot if host else k] for n, x in rows.items()}


class FileRows:
    """A nameless file in the temporary directory, one row behind the other: one call moves a row
    with all its leaves, where pages of a mapped file would be fetched one by one. The file is gone
    when it is closed, however that happens."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.row_bytes = sum(s.numel() * d.itemsize for _, s, d in layout)
        try:
            self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        except OSError as error:
            raise _no_disk(error, 0) from None
        weakref.finalize(self, self.file.close)

    def grow(self, slots: int) -> None:
        """Blocks on the disk now: better no round than half of one."""
        size = slots * self.row_bytes
        try:
            if size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.file.fileno(), 0, size)
        except OSError as error:
            raise _no_disk(error, size) from None

    def read(self, at: Tensor, out: Tree) -> None:
        self._move(os.preadv, at, out)

    def write(self, at: Tensor, leaves: Tree) -> None:
        self._move(os.pwritev, at, leaves)

    def each(self, slots: Iterable[int]) -> Iterator[Tree]:
        """Row by row, in host memory."""
        for some in _pieces(slots):
            rows = {n: torch.empty(len(some), *s, dtype=d) for n, s, d in self.layout}
            self.read(some, rows)
            for k in range(len(some)):
                yield {n: x[k] for n, x in rows.items()}

    def _move(self, transfer: Callable[..., int], at: Tensor, leaves: Tree) -> None:
        flat = [_bytes(leaves[n]) for n, shape, _ in self.layout if shape.numel()]
        try:
            for k, slot in enumerate(at.tolist()):
                parts = [memoryview(one[k % len(one)]) for one in flat]
                _whole(transfer, self.file.fileno(), parts, slot * self.row_bytes)
        except OSError as error:
            raise _no_disk(error, len(at) * self.row_bytes) from None


def _pieces(slots: Iterable[int]) -> tuple[Tensor, ...]:
    """The slots, some at once; none where there are none."""
    at = torch.tensor(list(slots), dtype=torch.int64)
    return at.split(PIECE) if len(at) else ()


def _bytes(rows: Tensor) -> np.ndarray:
    """`[rows, bytes]`, or a single one if all rows are the same."""
    rows = (rows[:1] if rows.stride(0) == 0 else rows).to(CPU).contiguous()
    wide = rows[0].numel()
    return rows.as_strided((len(rows), wide), (wide, 1)).view(torch.uint8).numpy()


def _whole(transfer: Callable[..., int], file: int, parts: list[memoryview], place: int) -> None:
    """A call moves so many parts at most, and 2 GiB."""
    while parts:
        moved = transfer(file, parts[:MOST_PARTS], place)
        if not moved:
            raise OSError(errno.EIO, "the file is shorter than it was")
        place += moved
        while parts and moved >= parts[0].nbytes:
            moved -= parts.pop(0).nbytes
        if moved:
            parts[0] = parts[0][moved:]


def _no_disk(error: OSError, size: int) -> UserError:
    return UserError(
        f"cannot keep clients' state on disk ({-(-size // 2**20)} MiB in {_folder()}): "
        f"{error.strerror or error}; set TMPDIR to a directory with room, or use --keep host"
    )


def _folder() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:
        return "the temporary directory"


def is_blank(name: str) -> bool:
    """Whether this stands for an empty part of a record (`tree.leaves`)."""
    return name.endswith("/")


def leaf_names(record: Mapping[str, Any], prefix: str = "") -> Record:
    """The record with the flat name of every leaf in its place."""
    return {
        k: leaf_names(v, f"{prefix}{k}/") if isinstance(v, Mapping) else f"{prefix}{k}"
        for k, v in record.items()
    }
