"""SPFL and PLGA: k classes per client."""

from dataclasses import dataclass

import numpy as np

from idiolect.core import rng
from idiolect.core.fields import hyper
from idiolect.data.pool import TRAIN, Pool
from idiolect.data.splits.base import Divided, Split, at_most_classes, cut, numbered


@dataclass(frozen=True)
class Classes(Split):
    """SPFL and PLGA: k classes per client, one equal bucket of each; training part only.

    Every class is shuffled and cut into N buckets of floor(n_class / N); a client takes the next
    unused bucket of each of its classes. The last `test_share` of every bucket is for testing.
    """

    clients: int | None = hyper(10, "number of clients", min=1)
    k: int = hyper(6, "classes per client: 6 MNIST and CIFAR-10, 32 EMNIST, 60 CIFAR-100", min=1)
    shared_classes: bool = hyper(False, "all clients have the same k classes (SPFL's IID)")
    test_share: float = hyper(0.2, "share of every bucket for testing", above=0, below=1)

    name = "classes"

    def divide(self, pool: Pool, seed: int) -> Divided:
        at_most_classes("k", self.k, pool)
        draw = rng.keyed(seed, "classes", "draw")
        shared = draw.permutation(pool.classes)[: self.k]
        buckets = {}
        for c in range(pool.classes):
            rows = np.flatnonzero((pool.part == TRAIN) & (pool.y == c))
            size = len(rows) // self.n
            shuffled = rng.keyed(seed, "classes", "shuffle", c).permutation(rows)
            buckets[c] = iter(shuffled[: size * self.n].reshape(self.n, size))
        train, test = [], []
        for _ in range(self.n):
            own = shared if self.shared_classes else draw.permutation(pool.classes)[: self.k]
            pairs = [cut(next(buckets[int(c)]), self.test_share) for c in np.sort(own)]
            train.append(np.concatenate([a for a, _ in pairs]))
            test.append(np.concatenate([b for _, b in pairs]))
        return numbered(train, test)
