"""FedDWA, pathological: shards of samples sorted by label."""

from dataclasses import dataclass

import numpy as np

from idiolect.core import rng
from idiolect.core.fields import hyper
from idiolect.data.pool import Pool
from idiolect.data.splits.base import Divided, Split, enough, numbered, train_and_test


@dataclass(frozen=True)
class Shards(Split):
    """FedDWA, pathological: sorted by label, cut into equal shards, two random ones per client.

    The same shard numbers are applied to the test part.
    """

    per_client: int = hyper(2, "shards per client", min=1)

    name = "shards"

    def divide(self, pool: Pool, seed: int) -> Divided:
        count = self.n * self.per_client
        owned = rng.keyed(seed, "shards").permutation(count).reshape(self.n, self.per_client)
        dealt = []
        for what, rows in train_and_test(pool, self.test_share, seed).items():
            enough(rows, count, what)
            shards = np.array_split(rows[np.argsort(pool.y[rows], kind="stable")], count)
            dealt.append([np.concatenate([shards[s] for s in own]) for own in owned])
        return numbered(*dealt)
