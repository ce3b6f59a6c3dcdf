"""The steps of a stack of clients: who takes part in each, on which samples.

Clients are sorted by number of steps, so those still active are always the first rows of the stack
and the stack shrinks as they finish.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from idiolect.core import memory

WIDE = 512  # batches wider than this share a step only with batches of similar size
FILL = 0.7  # … at least this share of the widest


@dataclass(frozen=True)
class Step:
    """One step of some clients: rows `who` of the stack, sample positions, and their weights."""

    number: int
    who: slice | Tensor
    at: Tensor  # [k, B] positions among the clients' samples
    weight: Tensor | None  # [k, B], rows sum to 1; None = plain mean
    size: Tensor  # [k] real samples


class Steps:
    """All steps of one pass or training, on the device once."""

    def __init__(
        self,
        tables: Sequence[tuple[np.ndarray, np.ndarray]],
        offsets: Sequence[int],
        device: torch.device,
        dtype: torch.dtype,
        exact: bool,
    ):
        """`tables` holds every client's batches (`Plan.table`), `offsets` where its samples begin.
        `exact`: samples of a batch depend on one another, so none may be filled up."""
        order = sorted(
            range(len(tables)), key=lambda k: (-len(tables[k][1]), -tables[k][0].shape[1])
        )
        # Where the clients are in the stack, and back; None: in their own order.
        sorted_already = order == list(range(len(order)))
        self.order = None if sorted_already else memory.sent(torch.tensor(order), device)
        self.back = None if self.order is None else torch.argsort(self.order)
        self.clients, self.exact = len(tables), exact
        self.count = len(tables[order[0]][1])
        self.width = max(rows.shape[1] for rows, _ in tables)
        # Full batches see the same samples in every step.
        self.same = all(rows.strides[0] == 0 and len(rows) == self.count for rows, _ in tables)
        kept = 1 if self.same else self.count
        at = np.empty((kept, len(order), self.width), dtype=np.int64)
        self.sizes = np.zeros((self.count, len(order)), dtype=np.int64)
        for k, i in enumerate(order):
            rows, sizes = tables[i]
            at[:, k] = offsets[i]
            at[: len(sizes), k, : rows.shape[1]] = rows[:kept] + offsets[i]
            self.sizes[: len(sizes), k] = sizes
        self.active = (self.sizes > 0).sum(1)  # clients still training at each step
        self.samples = self.sizes.sum(0)[np.argsort(order)]  # by client
        self.at = memory.sent(torch.from_numpy(at), device).expand(self.count, -1, -1)
        self.size = memory.sent(torch.from_numpy(self.sizes).to(dtype), device)
        # The usual batch size; in exact mode the others are steps of their own.
        self.usual = int(np.bincount(self.sizes[self.sizes > 0]).argmax()) if exact else self.width
        self._device, self._dtype = device, dtype

    def weights(self) -> Tensor:
        """`[T, K, B]`: 1 / size for real samples, 0 for the others."""
        column = torch.arange(self.width, device=self._device)
        size = self.size[..., None]
        return torch.where(column < size, 1 / size.clamp_min(1), 0.0).to(self._dtype)

    def __iter__(self) -> Iterator[Step]:
        for t in range(self.count):
            yield from self.at_step(t)

    def at_step(self, t: int, unusual: bool = False) -> Iterator[Step]:
        """The groups of clients that share step t; only those of unusual size if asked."""
        sizes = self.sizes[t, : self.active[t]]
        for group in _groups(sizes, self.exact):
            if unusual and sizes[group[0]] == self.usual:
                continue
            who: slice | Tensor = slice(int(group[0]), int(group[-1]) + 1)
            if len(group) != group[-1] - group[0] + 1:
                who = torch.from_numpy(group).to(self._device)
            width = int(sizes[group].max())
            size = self.size[t, who]
            weight = None
            if (sizes[group] != width).any():
                column = torch.arange(width, device=self._device)
                weight = (column < size[:, None]).to(self._dtype) / size[:, None]
            yield Step(t, who, self.at[t, who, :width], weight, size)


def _groups(sizes: np.ndarray, exact: bool) -> list[np.ndarray]:
    """Clients that share a step: of equal size, or similar where filling is allowed."""
    if exact:
        return [np.flatnonzero(sizes == s) for s in np.unique(sizes)[::-1]]
    if sizes.max() <= WIDE or sizes.min() >= FILL * sizes.max():
        return [np.arange(len(sizes))]
    groups, rest = [], np.argsort(-sizes, kind="stable")
    while len(rest):
        near = sizes[rest] >= FILL * sizes[rest[0]]
        groups.append(np.sort(rest[near]))
        rest = rest[~near]
    return groups
