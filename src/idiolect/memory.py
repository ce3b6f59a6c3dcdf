"""How much memory there is, and how many clients of a round fit into it: by measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from idiolect.errors import UserError

GUESSED = 0.25  # share of the free memory that unmeasured work may take
MEASURED = 0.75  # … and measured work
_CGROUP = Path("/sys/fs/cgroup")


def free(device: torch.device) -> int:
    """Bytes that can still be allocated on a device; for the CPU, of RAM."""
    if device.type != "cuda":
        return _free_ram()
    left, _ = torch.cuda.mem_get_info(device)
    for segment in torch.cuda.memory_snapshot():  # kept by PyTorch and not in use
        of_a_graph = segment.get("segment_pool_id", (0, 0)) != (0, 0)
        if segment["device"] == _number(device) and not of_a_graph:
            left += segment["total_size"] - segment["allocated_size"]
    return left


def gather(store: Tensor, at: Tensor, out: Tensor) -> None:
    """Rows `at` of a tensor in host memory into `out`, which may be on a GPU: the copy there is
    under way on the current stream when this returns."""
    if out.device.type != "cuda":
        torch.index_select(store, 0, at, out=out)
        return
    # The allocator of pinned memory keeps the buffer until the copy is done.
    buffer = torch.empty(out.shape, dtype=out.dtype, pin_memory=True)
    torch.index_select(store, 0, at, out=buffer)
    out.copy_(buffer, non_blocking=True)


def _number(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _free_ram() -> int:
    known = [_field(Path("/proc/meminfo"), "MemAvailable")]
    try:  # a container may have less
        limit = int((_CGROUP / "memory.max").read_text())
        cache = _field(_CGROUP / "memory.stat", "inactive_file", unit=1) or 0
        known.append(limit - int((_CGROUP / "memory.current").read_text()) + cache)
    except (OSError, ValueError):
        pass
    found = [n for n in known if n is not None]
    return min(found) if found else 4 << 30  # no way to ask: assume little


def _field(file: Path, name: str, unit: int = 1024) -> int | None:
    """A number from a file of `name value` lines."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.split()[0].rstrip(":") == name]
    return unit * int(found[0]) if found else None


class Meter(Protocol):
    """Measures a piece of work: `begin` before it, then `peak` and `kept`, bytes above that."""

    def free(self) -> int: ...
    def begin(self) -> None: ...
    def peak(self) -> int | None: ...
    def kept(self) -> int: ...


def meter(device: torch.device) -> Meter:
    return CudaMeter(device) if device.type == "cuda" else RamMeter()


class CudaMeter:
    """What PyTorch allocates on a GPU."""

    def __init__(self, device: torch.device):
        self.device, self._before = device, 0

    def free(self) -> int:
        return free(self.device)

    def begin(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)
        self._before = torch.cuda.memory_allocated(self.device)

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self.device) - self._before

    def kept(self) -> int:
        return max(0, torch.cuda.memory_allocated(self.device) - self._before)


class RamMeter:
    """Resident memory of this process, whose high-water mark Linux lets a process reset; where it
    does not, nothing is measured."""

    def __init__(self) -> None:
        self._before: int | None = None

    def free(self) -> int:
        return _free_ram()

    def begin(self) -> None:
        self._before = None
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            return
        self._before = self._now("VmRSS")

    def peak(self) -> int | None:
        now = self._now("VmHWM")
        return None if now is None or self._before is None else max(0, now - self._before)

    def kept(self) -> int:
        return 0  # memory that was freed may stay resident: not to be told apart

    def _now(self, name: str) -> int | None:
        return _field(Path("/proc/self/status"), name)


class Chunks:
    """Cuts a cohort into equal groups that fit the memory.

    A cohort whose guessed need is small against the free memory is one group, and nothing is
    measured. Otherwise the first group is as large as a careful guess allows; what it really took
    decides about the next, here and in later rounds."""

    def __init__(self, meter: Meter, guess: Callable[[int], float]):
        """`guess(n)` is the need, in bytes, of one client with n samples."""
        self.meter, self.guess = meter, guess
        self.each: float | None = None  # bytes at the peak, a client
        self.stays = 0.0  # bytes of a client's results
        self.width = 0  # samples of the largest client measured
        self._ample = 0.0  # bytes that need no second look

    def cut(self, sizes: Sequence[int]) -> Iterator[range]:
        """Positions in `sizes` (samples of each client) that compute together. The work on a group
        is done when the next one is asked for."""
        n, at = len(sizes), 0
        while at < n:
            rest, each = n - at, self._need(max(sizes[at:]))
            if at == 0 and n * each <= self._ample:
                yield range(n)
                return
            free = self.meter.free()
            self._ample = GUESSED * free
            if at == 0 and n * each <= self._ample:
                yield range(n)
                return
            group = range(at, at + self._size(rest, n, each, free))
            self.meter.begin()
            yield group
            self._learn(len(group), max(sizes[k] for k in group))
            at = group.stop

    def _need(self, width: int) -> float:
        if self.each is None:
            return self.guess(width)
        return self.each * max(1.0, width / self.width)  # larger clients may need more

    def _size(self, rest: int, n: int, each: float, free: int) -> int:
        """The next group's clients, in equal groups for the rest of the cohort."""
        room = (GUESSED if self.each is None else MEASURED) * free
        if rest == n and n * each <= room:
            return n
        # Beside a group lie the results of all clients, in the end once more when they are joined.
        results = self.stays * (rest + n)
        if results > MEASURED * free:
            raise UserError(
                f"the results of {n} clients need about {results / 2**30:.1f} GiB of memory and "
                f"{free / 2**30:.1f} GiB are free; lower --participation or use a smaller model"
            )
        fit = max(1, min(rest, int((room - results) / max(each, 1.0))))
        return -(-rest // -(-rest // fit))

    def _learn(self, count: int, width: int) -> None:
        peak, kept = self.meter.peak(), self.meter.kept()
        if peak is None:  # cannot be measured here: the guess stays
            return
        self.each = max(self.each or 0.0, peak / count)
        self.stays = max(self.stays, kept / count)
        self.width = max(self.width, width)
