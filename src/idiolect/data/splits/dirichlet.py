"""Label shares from a Dirichlet distribution."""

from dataclasses import dataclass

import numpy as np

from idiolect.core import rng
from idiolect.core.fields import hyper
from idiolect.data.pool import Pool
from idiolect.data.splits.base import Divided, Rows, Split, cut, numbered, train_and_test
from idiolect.errors import UserError


@dataclass(frozen=True)
class Dirichlet(Split):
    """FedAS, and FedDWA's practical 2: shares of every class drawn from Dir(alpha).

    Train and test parts are merged. With `cap`, a client that already holds total / N samples
    gets nothing more. All is drawn again until every client has `min_size`; each client's
    samples are then divided at random (FedAS: min_size 40, test_share .25; FedDWA: 20, .2).
    So do the programs. FedDWA's text draws shares of the training samples and caps nobody: `merge`
    and `cap` false. A class's shares then hold for the training and for the test part.
    """

    alpha: float = hyper(0.1, "concentration; smaller is more heterogeneous", above=0)
    cap: bool = hyper(True, "stop giving to clients that hold their equal share")
    min_size: int = hyper(20, "samples every client must have (FedAS: 40)", min=1)
    test_share: float = hyper(0.25, "a client's share for testing (FedDWA: .2)", above=0, below=1)
    merge: bool = hyper(True, "merge train and test part before, or give shares of each")
    tries: int = hyper(1000, "draws before giving up on min_size", min=1)

    name = "dirichlet"

    def divide(self, pool: Pool, seed: int) -> Divided:
        if self.min_size * self.n > len(pool):
            raise UserError(
                f"{self.n} clients with split.min_size {self.min_size} need"
                f" {self.n * self.min_size} samples, the data has {len(pool)};"
                " lower one of them"
            )
        if self.merge:
            return self._merged(pool, seed)
        parts = train_and_test(pool, self.test_share, seed)
        counts = [np.bincount(pool.y[rows], minlength=pool.classes) for rows in parts.values()]
        both = zip(parts.items(), self._ends(counts, seed), strict=True)
        dealt = [self._dealt(pool, rows, ends, seed, what) for (what, rows), ends in both]
        return numbered(*dealt)

    def _merged(self, pool: Pool, seed: int) -> Divided:
        [ends] = self._ends([np.bincount(pool.y, minlength=pool.classes)], seed)
        train, test = [], []
        for i, held in enumerate(self._dealt(pool, np.arange(len(pool)), ends, seed)):
            rows = rng.keyed(seed, "dirichlet", "test", i).permutation(held)
            kept, rest = cut(rows, self.test_share)
            train.append(kept)
            test.append(rest)
        return numbered(train, test)

    def _dealt(self, pool: Pool, rows: Rows, ends: Rows, seed: int, *what: str) -> list[Rows]:
        """What each client holds of these rows."""
        held: list[list[Rows]] = [[] for _ in range(self.n)]
        for c in range(pool.classes):
            draw = rng.keyed(seed, "dirichlet", "shuffle", *what, c)
            samples = draw.permutation(rows[pool.y[rows] == c])
            for i, piece in enumerate(np.split(samples, ends[c][:-1])):
                held[i].append(piece)
        return [np.concatenate(pieces) for pieces in held]

    def _ends(self, counts: list[Rows], seed: int) -> list[Rows]:
        """Where each client's piece of each class ends, in every part: [classes, N]. The first part
        decides who holds enough; of the others everybody gets at least one sample."""
        draw = rng.keyed(seed, "dirichlet", "shares")
        total, smallest = counts[0].sum(), 0
        for _ in range(self.tries):
            ends = [np.zeros((len(part), self.n), np.int64) for part in counts]
            sizes = np.zeros((len(counts), self.n), np.int64)
            for c in range(len(counts[0])):
                share = draw.dirichlet(np.full(self.n, self.alpha))
                if self.cap:
                    share = _capped(share, sizes[0] < total / self.n)
                for p, part in enumerate(counts):
                    ends[p][c] = (np.cumsum(share) * part[c]).astype(np.int64)
                    ends[p][c, -1] = part[c]
                    sizes[p] += np.diff(ends[p][c], prepend=0)
            smallest = max(smallest, int(sizes[0].min()))
            if sizes[0].min() >= self.min_size and sizes.min() >= 1:
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
