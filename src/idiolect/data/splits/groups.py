"""FedDWA, practical 1: groups of clients with similar labels."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from idiolect.core import rng
from idiolect.core.fields import hyper
from idiolect.data.pool import Pool
from idiolect.data.splits.base import (
    Divided,
    Rows,
    Split,
    at_most_classes,
    cut,
    enough,
    numbered,
    train_and_test,
)
from idiolect.errors import UserError


@dataclass(frozen=True)
class Groups(Split):
    """FedDWA, practical 1: groups of clients with their own label block, plus a common rest.

    `dominant_share` of the samples is sorted by label and cut into one block per group, each
    spread evenly over its clients; the rest is spread evenly over all. Train and test alike. So
    does FedDWA's program. Its text gives every group `dominant_classes` (3 CIFAR-10 and CINIC-10,
    20 CIFAR-100, 40 Tiny-ImageNet) and all clients the same size: `dominant_share` of a client's
    samples are then spread evenly over the classes of its group, the rest over all classes, and
    clients are as large as the most wanted class allows.
    """

    groups: int = hyper(4, "number of groups; the last takes the clients that are left over", min=1)
    dominant_share: float = hyper(0.8, "share of samples that goes by group", above=0, max=1)
    dominant_classes: int | None = hyper(
        None, "classes of every group, as FedDWA's text; not set: one label block each", min=1
    )

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

    def class_sets(self, classes: int, seed: int) -> list[Rows]:
        """The dominant classes of each group: neighbours in a random order of all classes, so that
        groups share a class only where there are too few."""
        size = self.dominant_classes or 0
        order = rng.keyed(seed, "groups", "classes").permutation(classes)
        return [order[np.arange(g * size, (g + 1) * size) % classes] for g in range(self.groups)]

    def divide(self, pool: Pool, seed: int) -> Divided:
        if self.dominant_classes is not None:
            at_most_classes("dominant_classes", self.dominant_classes, pool)
            sets = self.class_sets(pool.classes, seed)
            both = train_and_test(pool, self.test_share, seed).items()
            return numbered(*(self._by_class(pool, rows, what, sets, seed) for what, rows in both))
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

    def _by_class(
        self, pool: Pool, rows: Rows, what: str, sets: list[Rows], seed: int
    ) -> list[Rows]:
        """Clients of one size, as large as the most wanted class allows."""
        of_class = [rows[pool.y[rows] == c] for c in range(pool.classes)]
        draw = rng.keyed(seed, "groups", "by class", what)
        for size in range(len(rows) // self.n, 0, -1):
            wanted = self._wanted(size, pool.classes, sets)
            if all(len(have) >= want for have, want in zip(of_class, wanted.sum(0), strict=True)):
                break
        else:
            raise UserError(f"{len(rows)} {what} samples are too few; lower split.clients")
        cuts = np.cumsum(wanted, 0)
        both = zip(of_class, cuts.T, strict=True)
        pieces = [np.split(draw.permutation(have), cut) for have, cut in both]
        return [np.concatenate([piece[i] for piece in pieces]) for i in range(self.n)]

    def _wanted(self, size: int, classes: int, sets: list[Rows]) -> Rows:
        """[N, classes]: samples of every class that each client of this size gets. What is left
        over when its samples are spread goes to other classes with every client."""
        dominant = round(self.dominant_share * size)
        wanted = np.zeros((self.n, classes), np.int64)
        for own, members in zip(sets, self.members(), strict=True):
            for turn, i in enumerate(members):
                wanted[i, own] += _spread(dominant, len(own), turn)
                wanted[i] += _spread(size - dominant, classes, i)
        return wanted


def _spread(total: int, places: int, turn: int) -> Rows:
    """`total` in nearly equal whole parts; those that get one more differ from turn to turn."""
    each, more = divmod(total, places)
    return each + (((np.arange(places) - turn * more) % places) < more).astype(np.int64)
