"""Each client gets every n-th sample."""

from dataclasses import dataclass

import numpy as np

from idiolect.core.fields import hyper
from idiolect.data.pool import Pool
from idiolect.data.splits.base import Divided, Split, numbered


@dataclass(frozen=True)
class Stripes(Split):
    """Each client gets every n-th sample, the first `head` of them for training."""

    head: int = hyper(50, "training samples of every client", min=1)

    name = "stripes"

    def divide(self, pool: Pool, seed: int) -> Divided:
        rows = [np.arange(i, len(pool), self.n) for i in range(self.n)]
        return numbered([r[: self.head] for r in rows], [r[self.head :] for r in rows])
