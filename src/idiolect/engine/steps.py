"""The steps of a stack of clients: who takes part in each, on which samples.

Clients are sorted by number of steps, so those still active are always the first rows of the stack
and the stack shrinks as they finish.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect.core import devices
from idiolect.core.record import Rows, select

MAX_WIDTH_TO_MIX_SIZES = 512  # samples; wider batches share a step only with similar ones
MIN_SHARE_OF_WIDEST = 0.7  # of the samples of the widest batch, to count as similar


@dataclass(frozen=True)
class Step:
    """One step of k clients of the stack."""

    who: slice | Tensor  # their rows of the stack
    at: Tensor  # [k, B] positions among the clients' training samples, for `Rows`
    sample: Tensor  # [k, B] positions among the samples on the device
    y: Tensor  # [k, B] labels, or [k, B, T] targets; -1 for filling, where the loss knows it
    weight: Tensor | None  # [k, B], rows sum to 1; None: the plain mean
    size: Tensor  # [k] real samples
    keep: Tensor | None = None  # [k] 1 for those who take the step, 0 for the rest; None: all do
    inputs: Tensor | None = None  # [k, B, ...] the samples as they were changed; None: as they are
    loss_scale: Tensor | None = None  # [k] what a captured step multiplies each client's loss by

    def part_of(self, extra: Any) -> Any:
        """What this step needs of an extra argument of a loss."""
        return extra.values[self.at] if isinstance(extra, Rows) else select(extra, self.who)


class Steps:
    """All steps of one pass or training, brought to the device at once."""

    def __init__(
        self,
        tables: Sequence[tuple[np.ndarray, np.ndarray]],
        offsets: Sequence[int],
        index: Tensor,
        labels: Tensor,
        dtype: torch.dtype,
        *,
        exact: bool = False,
        mark_filling: bool = False,
    ):
        """`tables` holds every client's batches (`BatchPlan.table`), `offsets` where its samples
        begin in `index`, which says where they lie on the device; `labels` are those of the device.
        `exact`: samples of a batch depend on one another, so no batch may be filled up.
        `mark_filling`: the loss ignores samples with the label -1, so filling gets that label."""
        order = sorted(
            range(len(tables)), key=lambda k: (-len(tables[k][1]), -tables[k][0].shape[1])
        )
        device = index.device
        # The clients' order in the stack, and the way back; None: they are sorted already.
        is_sorted = order == list(range(len(order)))
        self.order = None if is_sorted else devices.to_device(torch.tensor(order), device)
        self.back = None if self.order is None else torch.argsort(self.order)
        self.clients, self.exact = len(tables), exact
        self.count = len(tables[order[0]][1])
        self.width = max(rows.shape[1] for rows, _ in tables)
        # Full batches see the same samples in every step.
        self.same = all(rows.strides[0] == 0 and len(rows) == self.count for rows, _ in tables)
        if self.same and not exact:
            self.width = roomy(self.width)
        kept = 1 if self.same else self.count
        at_TKB = np.empty((kept, len(order), self.width), dtype=np.int64)
        self.sizes = np.zeros((self.count, len(order)), dtype=np.int64)
        for k, i in enumerate(order):
            rows, sizes = tables[i]
            at_TKB[:, k] = offsets[i]
            at_TKB[: len(sizes), k, : rows.shape[1]] = rows[:kept] + offsets[i]
            self.sizes[: len(sizes), k] = sizes
        self.active = (self.sizes > 0).sum(1)  # [T] clients still training at each step
        by_client = np.argsort(order)
        self.samples = self.sizes.sum(0)[by_client]  # [K] samples seen, by client
        self.taken = (self.sizes > 0).sum(0)[by_client]  # [K] steps, by client
        self.size = devices.to_device(torch.from_numpy(self.sizes).to(dtype), device)  # [T, K]
        # The usual batch size; in exact mode other sizes are steps of their own.
        self.usual = int(np.bincount(self.sizes[self.sizes > 0]).argmax()) if exact else self.width
        self._column = torch.arange(self.width, device=device)
        at = devices.to_device(torch.from_numpy(at_TKB), device)
        sample = index[at]
        y = labels[sample]
        if mark_filling:
            y = torch.where(self._column < self.size[:kept, :, None], y, -1)
        self.at, self.sample, self.y = (v.expand(self.count, *v.shape[1:]) for v in (at, sample, y))

    def weights(self) -> Tensor:
        """`[T, K, B]`: 1 / size for real samples, 0 for the others."""
        size = self.size[..., None]
        return torch.where(self._column < size, 1 / size.clamp_min(1), 0.0).to(size.dtype)

    def __iter__(self) -> Iterator[Step]:
        if self.clients == 1:
            yield from self._of_one()
            return
        for t in range(self.count):
            yield from self.at_step(t)

    def _of_one(self) -> Iterator[Step]:
        """The steps of a single client, cut out all at once."""
        parts = (v.unbind(0) for v in (self.at, self.sample, self.y, self.size))
        for n, at, sample, y, size in zip(self.sizes[:, 0].tolist(), *parts, strict=True):
            if n < self.width:
                at, sample, y = at[:, :n], sample[:, :n], y[:, :n]
            yield Step(slice(0, 1), at, sample, y, None, size)

    def at_step(self, t: int, unusual: bool = False) -> Iterator[Step]:
        """Step t, once for each group of clients that can share it; `unusual`: only the groups
        whose batches do not have the usual size."""
        sizes = self.sizes[t, : self.active[t]]
        for group in _groups(sizes, self.exact):
            if unusual and sizes[group[0]] == self.usual:
                continue
            who: slice | Tensor = slice(int(group[0]), int(group[-1]) + 1)
            if len(group) != group[-1] - group[0] + 1:
                who = torch.from_numpy(group).to(self.size.device)
            width = int(sizes[group].max())
            at, sample, y = (v[t, who, :width] for v in (self.at, self.sample, self.y))
            size = self.size[t, who]
            weight = None
            if (sizes[group] != width).any():
                real = self._column[:width] < size[:, None]
                weight = real.to(size.dtype) / size[:, None]
            yield Step(who, at, sample, y, weight, size)


def roomy(width: int) -> int:
    """The next of a few widths, at most an eighth larger: full batches are as wide as the largest
    client of a round, and captured steps are kept by width."""
    step = 1 << max(0, width.bit_length() - 4)
    return -(-width // step) * step


def _groups(sizes: np.ndarray, exact: bool) -> list[np.ndarray]:
    """Clients that share a step: of equal size, or similar where filling is allowed."""
    if exact:
        return [np.flatnonzero(sizes == s) for s in np.unique(sizes)[::-1]]
    similar = MIN_SHARE_OF_WIDEST
    if sizes.max() <= MAX_WIDTH_TO_MIX_SIZES or sizes.min() >= similar * sizes.max():
        return [np.arange(len(sizes))]
    groups, rest = [], np.argsort(-sizes, kind="stable")
    while len(rest):
        near = sizes[rest] >= similar * sizes[rest[0]]
        groups.append(np.sort(rest[near]))
        rest = rest[~near]
    return groups
