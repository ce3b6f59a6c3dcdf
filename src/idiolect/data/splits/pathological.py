"""FedDWA, pathological, as its text states it: exactly k classes per client, equal amounts."""

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
from idiolect.errors import UserError


@dataclass(frozen=True)
class Pathological(Split):
    """FedDWA, pathological as stated: exactly k random classes per client, as much of each.

    Every class has as many owners as any other, or one more. A class is dealt evenly to its
    owners; of its pieces a client keeps as much as the smallest holds. Train and test alike.
    (FedDWA's program cuts shards instead, of which some clients get a single class: `shards`.)
    """

    k: int = hyper(2, "classes per client: 2 CIFAR-10, 6 CIFAR-100, 10 Tiny-ImageNet", min=1)

    name = "pathological"

    def class_sets(self, classes: int, seed: int) -> list[Rows]:
        """Sorted classes of every client: each takes the k with the fewest owners, ties by lot."""
        draw = rng.keyed(seed, "pathological", "sets")
        owners, sets = np.zeros(classes, np.int64), []
        for _ in range(self.n):
            chosen = np.lexsort((draw.random(classes), owners))[: self.k]
            owners[chosen] += 1
            sets.append(np.sort(chosen))
        return sets

    def divide(self, pool: Pool, seed: int) -> Divided:
        at_most_classes("k", self.k, pool)
        sets = self.class_sets(pool.classes, seed)
        dealt = []
        for what, rows in train_and_test(pool, self.test_share, seed).items():
            held: list[list[Rows]] = [[] for _ in range(self.n)]
            for c in range(pool.classes):
                owners = [i for i, own in enumerate(sets) if c in own]
                draw = rng.keyed(seed, "pathological", what, c)
                samples = draw.permutation(rows[pool.y[rows] == c])
                for turn, i in enumerate(owners):
                    held[i].append(samples[turn :: len(owners)])
            dealt.append([_equal(pieces, what) for pieces in held])
        return numbered(*dealt)


def _equal(pieces: list[Rows], what: str) -> Rows:
    least = min(len(piece) for piece in pieces)
    if not least:
        raise UserError(f"a class has fewer {what} samples than clients; lower split.clients")
    return np.concatenate([piece[:least] for piece in pieces])
