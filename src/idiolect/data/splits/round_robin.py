"""PFLEGO: samples of a class are dealt one by one."""

from dataclasses import dataclass

import numpy as np

from idiolect.core import rng
from idiolect.core.fields import hyper
from idiolect.data.pool import Pool
from idiolect.data.splits.base import (
    Divided,
    Rows,
    Split,
    at_most_classes,
    numbered,
    train_and_test,
)


@dataclass(frozen=True)
class RoundRobin(Split):
    """PFLEGO: K random classes per client, samples dealt one by one to the owners of a class.

    If a class has no owner, the first clients are given consecutive sets that cover all classes.
    The test part is dealt in the same way with the same sets.
    """

    clients: int | None = hyper(100, "number of clients", min=1)
    classes_per_client: int = hyper(2, "K: 2, half or all of the classes in the paper", min=1)

    name = "round_robin"

    def class_sets(self, classes: int, seed: int) -> list[Rows]:
        """Sorted classes of every client."""
        k, draw = self.classes_per_client, rng.keyed(seed, "round_robin", "sets")
        sets = [np.sort(draw.permutation(classes)[:k]) for _ in range(self.n)]
        if len(np.unique(np.concatenate(sets))) < classes and k * self.n >= classes:
            for i, start in enumerate(range(0, classes, k)):
                sets[i] = np.sort(np.arange(start, start + k) % classes)
        return sets

    def divide(self, pool: Pool, seed: int) -> Divided:
        at_most_classes("classes_per_client", self.classes_per_client, pool)
        sets = self.class_sets(pool.classes, seed)
        owners = [
            [i for i, classes in enumerate(sets) if c in classes] for c in range(pool.classes)
        ]
        dealt = []
        for what, rows in train_and_test(pool, self.test_share, seed).items():
            held: list[list[Rows]] = [[rows[:0]] for _ in range(self.n)]
            for c, clients in enumerate(owners):
                samples = rng.keyed(seed, "round_robin", what, c).permutation(
                    rows[pool.y[rows] == c]
                )
                for turn, i in enumerate(clients):
                    held[i].append(samples[turn :: len(clients)])
            dealt.append([np.concatenate(pieces) for pieces in held])
        return numbered(*dealt)
