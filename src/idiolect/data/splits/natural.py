"""Clients that the data itself names."""

from dataclasses import dataclass

import numpy as np

from idiolect.core import rng
from idiolect.core.fields import hyper
from idiolect.data.pool import TEST, TRAIN, Pool
from idiolect.data.splits.base import Divided, Rows, Split, cut
from idiolect.errors import UserError


@dataclass(frozen=True)
class Natural(Split):
    """A client is a writer (FEMNIST), an alphabet (Omniglot) or what your own data names.

    FEMNIST keeps its own test part; writers without training samples are left out. Omniglot's
    drawings are divided 15 to 5 per character before they are rotated, so that no drawing is on
    both sides; PFLEGO's own split divides the rotated copies.
    """

    clients: int | None = hyper(None, "keep only this many, chosen by seed; not set: all", min=1)
    min_size: int = hyper(2, "leave out clients with fewer samples", min=1)
    test_share: float = hyper(0.25, "test share if the dataset has no test part", above=0, below=1)
    paper_split: bool = hyper(False, "PFLEGO's Omniglot: rotated copies may fall on both sides")

    name = "natural"
    by_class = False

    def divide(self, pool: Pool, seed: int) -> Divided:
        if pool.group is None:
            raise UserError(
                "split 'natural' needs data that names clients: femnist, omniglot, or your own with"
                " data.client=COLUMN"
            )
        divided: Divided = {}
        for g, name in enumerate(pool.group_names):
            rows = np.flatnonzero(pool.group == g)
            train, test = self._parts(pool, rows, g, seed)
            if len(rows) >= self.min_size and len(train) and len(test):
                divided[name] = (train, test)
        if not divided:
            raise UserError(f"no client has {self.min_size} samples; lower split.min_size")
        if self.clients is None:
            return divided
        if self.clients > len(divided):
            raise UserError(
                f"split.clients is {self.clients} but only {len(divided)} clients have"
                f" {self.min_size} samples; lower split.clients or split.min_size"
            )
        kept = np.sort(rng.keyed(seed, "natural").permutation(len(divided))[: self.clients])
        names = list(divided)
        return {names[i]: divided[names[i]] for i in kept}

    def _parts(self, pool: Pool, rows: Rows, g: int, seed: int) -> tuple[Rows, Rows]:
        if pool.has_test:
            return rows[pool.part[rows] == TRAIN], rows[pool.part[rows] == TEST]
        draw = rng.keyed(seed, "natural", "test", g)
        if pool.drawing is None:
            return cut(draw.permutation(rows), self.test_share)
        train, test = [], []
        for c in np.unique(pool.y[rows]):
            mine = rows[pool.y[rows] == c]
            unit = mine if self.paper_split else pool.drawing[mine]
            kept, _ = cut(draw.permutation(np.unique(unit)), self.test_share)
            chosen = np.isin(unit, kept)
            train.append(mine[chosen])
            test.append(mine[~chosen])
        return np.concatenate(train), np.concatenate(test)
