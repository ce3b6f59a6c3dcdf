"""Equal random parts."""

from dataclasses import dataclass

import numpy as np

from idiolect.core import rng
from idiolect.data.pool import Pool
from idiolect.data.splits.base import Divided, Split, enough, numbered, train_and_test


@dataclass(frozen=True)
class Iid(Split):
    """Every client gets an equal random part of the training and of the test samples."""

    name = "iid"
    by_class = False

    def divide(self, pool: Pool, seed: int) -> Divided:
        dealt = []
        for what, rows in train_and_test(pool, self.test_share, seed).items():
            enough(rows, self.n, what)
            dealt.append(np.array_split(rng.keyed(seed, "iid", what).permutation(rows), self.n))
        return numbered(*dealt)
