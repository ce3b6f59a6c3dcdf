"""Which samples each step of a client's training sees, and the settings of local SGD."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from torch import Tensor

from idiolect.core import rng
from idiolect.core.optimizer import Optimizer
from idiolect.core.tree import Tree

Order = Literal["shuffled", "fixed", "class"]


@dataclass(frozen=True)
class BatchPlan:
    """How a client's data is cut into mini-batches."""

    batch_size: int | Literal["full"] = 32
    epochs: int = 1
    steps: int = 0  # mini-batches instead of epochs
    most: int = 0  # at most this many mini-batches of the epochs (0: all)
    order: Order = "shuffled"
    drop_last: bool = False
    purpose: str = "train"

    def count(self, samples: int, merge_single: bool = False) -> int:
        """How many batches a client with so many samples has."""
        if self.steps:
            return self.steps
        all_of_them = self.epochs * len(
            _one_pass(samples, self.batch_size, self.drop_last, merge_single)[1]
        )
        return min(all_of_them, self.most) if self.most else all_of_them

    def table(
        self,
        y: np.ndarray,
        seed: int,
        client: int,
        round: int,
        start: int = 0,
        merge_single: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The client's batches as rows of positions 0..n-1, and the real size of each. A shorter
        batch is filled up with the client's first sample. With `steps`, the first batch is number
        `start` of an endless sequence of passes, so a client goes on where its last round stopped.
        `merge_single` joins a last batch of one sample to the one before (BatchNorm needs two)."""
        where, sizes = _one_pass(len(y), self.batch_size, self.drop_last, merge_single)
        batches, first, last = len(sizes), 0, self.epochs
        if self.steps:
            first, last = start // batches, (start + self.steps - 1) // batches + 1
            round = -1
        if self.order == "class":
            rows = _repeated(np.argsort(y, kind="stable")[where], last - first)
        elif self.order == "fixed" or self.batch_size == "full":
            rows = _repeated(where, last - first)
        else:
            draws = [
                rng.keyed(seed, self.purpose, client, round + 1, p) for p in range(first, last)
            ]
            rows = np.concatenate([draw.permutation(len(y))[where] for draw in draws])
        sizes = np.tile(sizes, last - first)
        if self.steps:
            at = start - first * batches
            rows, sizes = rows[at : at + self.steps], sizes[at : at + self.steps]
        elif self.most:
            rows, sizes = rows[: self.most], sizes[: self.most]
        return rows, sizes


@lru_cache(maxsize=512)
def _one_pass(
    n: int, batch_size: int | Literal["full"], drop_last: bool, merge_single: bool
) -> tuple[np.ndarray, np.ndarray]:
    """One pass over n samples: batches as rows of positions in the pass, and their real sizes."""
    width = n if batch_size == "full" else min(batch_size, n)
    count, rest = divmod(n, width)
    sizes = np.full(count, width)
    if rest == 1 and merge_single and not drop_last:
        sizes[-1] = width = width + 1
    elif rest and not drop_last:
        sizes = np.append(sizes, rest)
    column = np.arange(width)
    begin = (np.cumsum(sizes) - sizes)[:, None]
    where = np.where(column < sizes[:, None], begin + column, 0)
    where.flags.writeable = sizes.flags.writeable = False
    return where, sizes


def _repeated(rows: np.ndarray, times: int) -> np.ndarray:
    """The same pass several times; a view, not a copy, where a pass is one batch."""
    return np.broadcast_to(rows, (times, *rows.shape)).reshape(-1, rows.shape[1])


@dataclass(frozen=True, kw_only=True)
class SgdSettings(BatchPlan):
    """Settings of local SGD. Every batch gets `repeat` steps. Then `after(params, *extra)`, written
    for ONE client, returns the leaves it wants to change."""

    lr: float | Tensor  # one for all, or one per client
    weight_decay: float = 0.0
    momentum: float = 0.0
    optimizer: Optimizer = "sgd"
    clip: float = 0.0  # the longest gradient of a client, over all leaves together (0: any)
    keep: bool = False  # go on with what the optimizer remembers of the client's last round
    repeat: int = 1
    after: Callable[..., Tree] | None = None
