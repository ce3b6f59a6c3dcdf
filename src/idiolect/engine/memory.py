"""How many clients of a round fit into the memory at once, by measurement."""

from collections.abc import Callable, Iterator, Sequence

import torch

from idiolect.core import devices
from idiolect.errors import UserError

SHARE_FOR_UNMEASURED_WORK = 0.25  # of the free memory
SHARE_FOR_MEASURED_WORK = 0.75  # of the free memory


class Meter:
    """Measures the memory of a piece of work. After `begin` and the work, `peak` is the most it
    used at a time and `kept` what its results hold, in bytes above what was used before.

    RAM is not measured: a process keeps what it has freed, so its size tells nothing about the next
    piece of work. Groups are cut by the guess."""

    def __init__(self, device: torch.device):
        self.device, self._before = device, 0

    def free(self) -> int:
        return devices.free_memory(self.device)

    def begin(self) -> None:
        pass

    def peak(self) -> int | None:
        return None

    def kept(self) -> int:
        return 0


class CudaMeter(Meter):
    """What PyTorch allocates on a GPU."""

    def begin(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)
        self._before = torch.cuda.memory_allocated(self.device)

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self.device) - self._before

    def kept(self) -> int:
        return max(0, torch.cuda.memory_allocated(self.device) - self._before)


class Chunks:
    """Cuts a cohort into equal groups that fit the memory.

    A cohort whose guessed need is small against the free memory is one group, and nothing is
    measured. Otherwise the first group is as large as a careful guess allows; what it really took
    decides about the next, here and in later rounds."""

    def __init__(self, meter: Meter):
        self.meter = meter
        self.peak_per_client: float | None = None  # bytes, measured
        self.kept_per_client = 0.0  # bytes of a client's results, measured
        self.most_samples = 0  # of a client, in the groups measured
        self.largest_group = 0  # clients, in the groups measured
        self._needs_no_look = 0.0  # bytes that are surely free
        self._group_size: dict[int, int] = {}  # by size of the cohort

    def cut(self, sizes: Sequence[int], guess: Callable[[int], float]) -> Iterator[range]:
        """Positions in `sizes` (samples of each client) that compute together. The work on a group
        is done when the next one is asked for. `guess(n)` is the need, in bytes, of one client with
        n samples."""
        n, at = len(sizes), 0
        while at < n:
            rest, each = n - at, self._need(max(sizes[at:]), guess)
            if at == 0 and n * each <= self._needs_no_look:
                yield range(n)
                return
            free = self.meter.free()
            self._needs_no_look = SHARE_FOR_UNMEASURED_WORK * free
            if at == 0 and n * each <= self._needs_no_look:
                yield range(n)
                return
            group = range(at, at + self._size(rest, n, each, free))
            self.meter.begin()
            yield group
            self._learn(len(group), max(sizes[k] for k in group))
            at = group.stop

    def most(self, each: float, n: int) -> int:
        """How many of n clients may work together without a measurement, at `each` bytes."""
        if n * each > self._needs_no_look:
            self._needs_no_look = SHARE_FOR_UNMEASURED_WORK * self.meter.free()
        return max(1, int(self._needs_no_look / max(each, 1.0)))

    def _need(self, width: int, guess: Callable[[int], float]) -> float:
        if self.peak_per_client is None:
            return guess(width)
        # Larger clients may need more.
        return self.peak_per_client * max(1.0, width / self.most_samples)

    def _size(self, rest: int, n: int, each: float, free: int) -> int:
        """The next group's clients, in equal groups for the rest of the cohort."""
        unmeasured = self.peak_per_client is None
        room = (SHARE_FOR_UNMEASURED_WORK if unmeasured else SHARE_FOR_MEASURED_WORK) * free
        if rest == n and n * each <= room:
            return n
        # Beside a group lie the results of all clients, in the end once more when they are joined.
        results = self.kept_per_client * (rest + n)
        if results > SHARE_FOR_MEASURED_WORK * free:
            raise UserError(
                f"the results of {n} clients need about {results / 2**30:.1f} GiB of memory and "
                f"{free / 2**30:.1f} GiB are free; lower --participation or use a smaller model"
            )
        fit = max(1, min(rest, int((room - results) / max(each, 1.0))))
        equal, planned = -(-rest // -(-rest // fit)), self._group_size.get(n, 0)
        if min(planned, rest) <= fit and equal < 1.25 * planned:
            return min(planned, rest)  # steps captured for groups of this size serve on
        if not unmeasured:
            self._group_size[n] = equal
        return equal

    def _learn(self, count: int, width: int) -> None:
        peak, kept = self.meter.peak(), self.meter.kept()
        if peak is None:  # cannot be measured here: the guess stays
            return
        if self.peak_per_client is None or width > self.most_samples:
            self.peak_per_client = max(self.peak_per_client or 0.0, peak / count)
        elif count > self.largest_group and 2 * width > self.most_samples:
            self.peak_per_client = peak / count  # more clients share what a group needs only once
        elif count == self.largest_group:
            self.peak_per_client = max(self.peak_per_client, peak / count)
        self.most_samples = max(self.most_samples, width)
        self.largest_group = max(self.largest_group, count)
        self.kept_per_client = max(self.kept_per_client, kept / count)
