"""What every client's models scored when they were last tested.

Numbers may still be on their way from a GPU: what is to be done with them is queued, and done in
order when somebody reads.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from idiolect.core import devices
from idiolect.core.task import ACCURACY, Metric
from idiolect.simulation.measures import Measures

SERIES = ("before", "after", "global")
PARTS = ("train", "val", "test")
Columns = dict[str, np.ndarray]


class Scores:
    """One column per figure and series, one row per client; NaN where nothing was tested."""

    def __init__(
        self,
        sizes: dict[str, np.ndarray],
        measure: Measures | None = None,
        metric: Metric = ACCURACY,
    ):
        """`sizes` has how many samples each client has in each part; a real federation fills it in
        as clients come. `measure` says which columns there are besides tests; `metric` is what
        clients are judged by, and names its columns."""
        self.sizes, self.metric = sizes, metric
        self.clients = len(sizes["test"])
        measure = measure or Measures()
        both, own = (metric.name, "loss"), ("before", "after")
        names = [f"{what}_{s}" for what in both for s in SERIES]
        names += [f"val_{what}_{s}" for what in both for s in own]
        names += [f"train_{what}_{s}" for what in both for s in own if measure.train]
        names += [f"{what}_guidance" for what in both if measure.guidance]
        names += ["fisher_trace"] * measure.fisher + ["flops", "passes"] * measure.flops
        self._columns = {name: np.full(self.clients, np.nan) for name in names}
        self._queue: deque[Callable[[], None]] = deque()

    @property
    def columns(self) -> Columns:
        """As they are now."""
        while self._queue:
            self._queue.popleft()()
        return self._columns

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {name: torch.from_numpy(column) for name, column in self.columns.items()}

    def restore(self, columns: Mapping[str, Tensor]) -> None:
        """Go on from earlier columns; snapshots taken so far keep what they saw."""
        known = self.columns
        self._columns = {name: columns[name].numpy().copy() for name in known}

    def write(
        self, series: str, part: str, ids: Sequence[int], correct: Tensor, loss: Tensor
    ) -> None:
        """Correct predictions (or what else the metric sums) and summed losses of clients `ids` on
        their own samples."""
        sums = correct.double().reshape(len(loss), -1)
        come = devices.to_host_later(torch.cat([sums, loss.double()[:, None]], 1))
        prefix, sizes, who = "" if part == "test" else f"{part}_", self.sizes[part], list(ids)

        def put() -> None:
            sums, size = come().numpy(), sizes[who].astype(np.float64)
            with np.errstate(invalid="ignore"):
                value = np.where(size > 0, self.metric.value(sums[:, :-1], size), np.nan)
                self._columns[f"{prefix}{self.metric.name}_{series}"][who] = value
                self._columns[f"{prefix}loss_{series}"][who] = sums[:, -1] / size

        self._queue.append(put)

    def put(self, name: str, ids: Sequence[int], values: Tensor, only: bool = False) -> None:
        """One number per client; `only`: nothing is known of the others now."""
        come, who = devices.to_host_later(values.double()), list(ids)

        def put() -> None:
            if only:
                self._columns[name][:] = np.nan
            self._columns[name][who] = come().numpy()

        self._queue.append(put)

    def copy(self, series: str, to: str, ids: Sequence[int]) -> None:
        """These clients' models are tested already, under the name of another series."""
        who = list(ids)

        def put() -> None:
            for name, column in self._columns.items():
                if name.endswith(f"_{series}"):
                    self._columns[name.removesuffix(series) + to][who] = column[who]

        self._queue.append(put)

    def forget(self, series: str, ids: Sequence[int]) -> None:
        """These clients have other models now, which nobody tested."""
        who = list(ids)

        def put() -> None:
            for name, column in self._columns.items():
                if name.endswith(f"_{series}"):
                    column[who] = np.nan

        self._queue.append(put)

    def snapshot(self) -> Callable[[], Columns]:
        """The columns as of now, whenever that is asked for; later tests are not waited for."""
        found: Columns = {}
        self._queue.append(lambda: found.update({k: v.copy() for k, v in self._columns.items()}))

        def read() -> Columns:
            while not found:
                self._queue.popleft()()
            return found

        return read

    def blank(self) -> Columns:
        """Of a round without a test."""
        return dict.fromkeys(self._columns, np.full(self.clients, np.nan))


def client_columns(
    sizes: Mapping[str, np.ndarray],
    started: Sequence[int] = (),
    staleness: Mapping[int, int] | None = None,
    unseen: Sequence[int] = (),
    names: Sequence[str] = (),
) -> Columns:
    """What is known of every client in a round besides its scores: its name where it has one,
    sizes, whether it started, and how late its work arrived (`staleness`, of those whose did)."""
    n, arrived = len(sizes["train"]), staleness or {}
    late = np.full(n, -1, dtype=np.int16)
    late[list(arrived)] = list(arrived.values())
    return {
        "client": np.arange(n, dtype=np.int32),
        **({"name": np.array(names, dtype=object)} if len(names) else {}),
        **{f"{part}_size": sizes[part] for part in PARTS},
        "started": _among(started, n),
        "arrived": _among(list(arrived), n),
        "staleness": late,
        "unseen": _among(unseen, n),
    }


def _among(ids: Sequence[int], n: int) -> np.ndarray:
    member = np.zeros(n, dtype=bool)
    member[list(ids)] = True
    return member
