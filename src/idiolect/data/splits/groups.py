"""FedDWA, practical 1: groups of clients with similar labels."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from idiolect.core import rng
from idiolect.core.fields import hyper
from idiolect.data.pool import Pool
from idiolect.data.splits.base import Divided, Split, cut, enough, numbered, train_and_test
from idiolect.errors import UserError


@dataclass(frozen=True)
class Groups(Split):
    """FedDWA, practical 1: groups of clients with their own label block, plus a common rest.

    `dominant_share` of the samples is sorted by label and cut into one block per group, each
    spread evenly over its clients; the rest is spread evenly over all. Train and test alike.
    """

    groups: int = hyper(4, "number of groups; the last takes the clients that are left over", min=1)
    dominant_share: float = hyper(0.8, "share of samples that goes by group", above=0, max=1)

    name = "groups"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups > self.n:
            raise UserError(
                f"split.groups is {self.groups} but there are {self.n} clients; lower it"
            )

    def members(self) -> list[list[int]]:
        """Client ids of each group."""
        each = self.n // self.groups
        starts = [g * each for g in range(self.groups)] + [self.n]
        return [list(range(a, b)) for a, b in pairwise(starts)]

    def divide(self, pool: Pool, seed: int) -> Divided:
        dealt = []
        for what, rows in train_and_test(pool, self.test_share, seed).items():
            enough(rows, self.n, what)
            draw = rng.keyed(seed, "groups", what)
            dominant, rest = cut(draw.permutation(rows), 1 - self.dominant_share)
            dominant = dominant[np.argsort(pool.y[dominant], kind="stable")]
            parts = np.array_split(draw.permutation(rest), self.n)
            for members, block in zip(
                self.members(), np.array_split(dominant, self.groups), strict=True
            ):
                pieces = np.array_split(draw.permutation(block), len(members))
                for i, piece in zip(members, pieces, strict=True):
                    parts[i] = np.concatenate([piece, parts[i]])
            dealt.append(parts)
        return numbered(*dealt)
