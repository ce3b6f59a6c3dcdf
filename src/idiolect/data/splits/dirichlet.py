"""Label shares from a Dirichlet distribution."""

from dataclasses import dataclass

import numpy as np

from idiolect.core import rng
from idiolect.core.fields import hyper
from idiolect.data.pool import Pool
from idiolect.data.splits.base import Divided, Rows, Split, cut, numbered
from idiolect.errors import UserError


@dataclass(frozen=True)
class Dirichlet(Split):
    """FedAS, and FedDWA's practical 2: shares of every class drawn from Dir(alpha).

    Train and test parts are merged. With `cap`, a client that already holds total / N samples
    gets nothing more. All is drawn again until every client has `min_size`; each client's
    samples are then divided at random (FedAS: min_size 40, test_share .25; FedDWA: 20, .2).
    """

    alpha: float = hyper(0.1, "concentration; smaller is more heterogeneous", above=0)
    cap: bool = hyper(True, "stop giving to clients that hold their equal share")
    min_size: int = hyper(20, "samples every client must have (FedAS: 40)", min=1)
    test_share: float = hyper(0.25, "a client's share for testing (FedDWA: .2)", above=0, below=1)
    tries: int = hyper(1000, "draws before giving up on min_size", min=1)

    name = "dirichlet"

    def divide(self, pool: Pool, seed: int) -> Divided:
        if self.min_size * self.n > len(pool):
            raise UserError(
                f"{self.n} clients with split.min_size {self.min_size} need"
                f" {self.n * self.min_size} samples, the data has {len(pool)};"
                " lower one of them"
            )
        ends = self._ends(np.bincount(pool.y, minlength=pool.classes), seed)
        held: list[list[Rows]] = [[] for _ in range(self.n)]
        for c in range(pool.classes):
            rows = rng.keyed(seed, "dirichlet", "shuffle", c).permutation(
                np.flatnonzero(pool.y == c)
            )
            for i, piece in enumerate(np.split(rows, ends[c][:-1])):
                held[i].append(piece)
        train, test = [], []
        for i, pieces in enumerate(held):
            rows = rng.keyed(seed, "dirichlet", "test", i).permutation(np.concatenate(pieces))
            kept, rest = cut(rows, self.test_share)
            train.append(kept)
            test.append(rest)
        return numbered(train, test)

    def _ends(self, counts: Rows, seed: int) -> Rows:
        """Where each client's piece of each class ends: [classes, N]."""
        draw = rng.keyed(seed, "dirichlet", "shares")
        total, smallest = counts.sum(), 0
        for _ in range(self.tries):
            ends = np.zeros((len(counts), self.n), np.int64)
            sizes = np.zeros(self.n, np.int64)
            for c, count in enumerate(counts):
                share = draw.dirichlet(np.full(self.n, self.alpha))
                if self.cap:
                    share = _capped(share, sizes < total / self.n)
                ends[c] = (np.cumsum(share) * count).astype(np.int64)
                ends[c, -1] = count
                sizes += np.diff(ends[c], prepend=0)
            smallest = max(smallest, int(sizes.min()))
            if sizes.min() >= self.min_size:
                return ends
        raise UserError(
            f"dirichlet: the best of {self.tries} draws gave the smallest client {smallest}"
            f" samples, split.min_size is {self.min_size}; raise split.alpha, or lower"
            " split.min_size or split.clients"
        )


def _capped(share: np.ndarray, open_: np.ndarray) -> np.ndarray:
    left: np.ndarray = share * open_
    if left.sum() <= 0:  # a tiny alpha gave all of the class to clients that are full
        left = open_.astype(float)
    left /= left.sum()
    return left
