"""Where the rows of a client table lie: on the device, in host memory or in mapped files."""

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from idiolect.core import devices, tree
from idiolect.core.tree import Record, Tree
from idiolect.errors import UserError

Keep = Literal["auto", "device", "host", "disk"]
KEEP: tuple[str, ...] = get_args(Keep)
Layout = tuple[tuple[str, torch.Size, torch.dtype], ...]
CPU = torch.device("cpu")


class RowStore:
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
        self._real = [(n, s, d) for n, s, d in layout if not is_blank(n)]
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
        self.capacity = capacity
        self._refill({} if self.place == "disk" else self._store)  # a file keeps what is in it

    def move(self, place: Keep) -> None:
        self._settled()
        old, self._store, self._files = self._store, {}, {}
        self.place, self._last = place, ([], self._last[1])
        self._refill(old)

    def _refill(self, old: dict[str, Tensor]) -> None:
        """Room for `capacity` rows, with those of `old` in it."""
        used = len(self.slots) + len(self._spare)
        for n, shape, dtype in self._real if self.capacity else ():
            new = self._allocated(n, self.capacity, shape, dtype)
            if n in old:
                new[:used].copy_(old.pop(n)[:used])
            self._store[n] = new

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


def is_blank(name: str) -> bool:
    """Whether this stands for an empty part of a record (`tree.leaves`)."""
    return name.endswith("/")


def leaf_names(record: Mapping[str, Any], prefix: str = "") -> Record:
    """The record with the flat name of every leaf in its place."""
    return {
        k: leaf_names(v, f"{prefix}{k}/") if isinstance(v, Mapping) else f"{prefix}{k}"
        for k, v in record.items()
    }
