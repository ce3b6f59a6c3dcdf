"""How many clients of a round fit into the memory at once, by measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch

from idiolect.core import devices
from idiolect.errors import UserError

SHARE_FOR_UNMEASURED_WORK = 0.25  # of the free memory
SHARE_FOR_MEASURED_WORK = 0.75  # of the free memory


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
        return devices.free_memory(self.device)

    def begin(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)
        self._before = torch.cuda.memory_allocated(self.device)

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self.device) - self._before

    def kept(self) -> int:
        return max(0, torch.cuda.memory_allocated(self.device) - self._before)


class RamMeter:
    """RAM is not measured: a process keeps what it has freed, so its size tells nothing about the
    next piece of work. Groups go by the guess."""

    def free(self) -> int:
        return devices.free_memory(torch.device("cpu"))

    def begin(self) -> None:
        pass

    def peak(self) -> None:
        return None

    def kept(self) -> int:
        return 0


class Chunks:
    """Cuts a cohort into equal groups that fit the memory.

    A cohort whose guessed need is small against the free memory is one group, and nothing is
    measured. Otherwise the first group is as large as a careful guess allows; what it really took
    decides about the next, here and in later rounds."""

    def __init__(self, meter: Meter):
        self.meter = meter
        self.each: float | None = None  # measured bytes at the peak, a client
        self.stays = 0.0  # bytes of a client's results
        self.width = 0  # samples of the largest client measured
        self.count = 0  # clients of the largest group measured
        self._ample = 0.0  # bytes that need no second look
        self._plan: dict[int, int] = {}  # size of the groups, by size of the cohort

    def cut(self, sizes: Sequence[int], guess: Callable[[int], float]) -> Iterator[range]:
        """Positions in `sizes` (samples of each client) that compute together. The work on a group
        is done when the next one is asked for. `guess(n)` is the need, in bytes, of one client with
        n samples."""
        n, at = len(sizes), 0
        while at < n:
            rest, each = n - at, self._need(max(sizes[at:]), guess)
            if at == 0 and n * each <= self._ample:
                yield range(n)
                return
            free = self.meter.free()
            self._ample = SHARE_FOR_UNMEASURED_WORK * free
            if at == 0 and n * each <= self._ample:
                yield range(n)
                return
            group = range(at, at + self._size(rest, n, each, free))
            self.meter.begin()
            yield group
            self._learn(len(group), max(sizes[k] for k in group))
            at = group.stop

    def most(self, each: float, n: int) -> int:
        """How many of n clients may work together without a measurement, at `each` bytes."""
        if n * each > self._ample:
            self._ample = SHARE_FOR_UNMEASURED_WORK * self.meter.free()
        return max(1, int(self._ample / max(each, 1.0)))

    def _need(self, width: int, guess: Callable[[int], float]) -> float:
        if self.each is None:
            return guess(width)
        return self.each * max(1.0, width / self.width)  # larger clients may need more

    def _size(self, rest: int, n: int, each: float, free: int) -> int:
        """The next group's clients, in equal groups for the rest of the cohort."""
        room = (SHARE_FOR_UNMEASURED_WORK if self.each is None else SHARE_FOR_MEASURED_WORK) * free
        if rest == n and n * each <= room:
            return n
        # Beside a group lie the results of all clients, in the end once more when they are joined.
        results = self.stays * (rest + n)
        if results > SHARE_FOR_MEASURED_WORK * free:
            raise UserError(
                f"the results of {n} clients need about {results / 2**30:.1f} GiB of memory and "
                f"{free / 2**30:.1f} GiB are free; lower --participation or use a smaller model"
            )
        fit = max(1, min(rest, int((room - results) / max(each, 1.0))))
        equal, planned = -(-rest // -(-rest // fit)), self._plan.get(n, 0)
        if min(planned, rest) <= fit and equal < 1.25 * planned:
            return min(planned, rest)  # what was captured for groups of this size serves on
        if self.each is not None:
            self._plan[n] = equal
        return equal

    def _learn(self, count: int, width: int) -> None:
        peak, kept = self.meter.peak(), self.meter.kept()
        if peak is None:  # cannot be measured here: the guess stays
            return
        if self.each is None or width > self.width:
            self.each = max(self.each or 0.0, peak / count)
        elif count > self.count and 2 * width > self.width:
            self.each = peak / count  # more clients share what a group needs only once
        elif count == self.count:
            self.each = max(self.each, peak / count)
        self.width, self.count = max(self.width, width), max(self.count, count)
        self.stays = max(self.stays, kept / count)
