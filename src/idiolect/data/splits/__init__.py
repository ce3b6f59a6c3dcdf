"""The papers' partitions.

Which of a dataset's own parts a split uses belongs to the paper it comes from. Where it needs a
test part and the dataset has none (digits, Omniglot), a random `test_share` of every class stands
in for it.
"""

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from idiolect.core import rng
from idiolect.core.fields import describe, hyper, named
from idiolect.data.splits.dirichlet import Dirichlet
from idiolect.data.splits.natural import Natural
from idiolect.data.pool import TRAIN, Table
from idiolect.data.splits.base import (
    Divided,
    Rows,
    Split,
    cut,
    enough,
    numbered,
    own_parts,
)
from idiolect.errors import UserError


@dataclass(frozen=True)
class Iid(Split):
    """Every client gets an equal random part of the training and of the test samples."""

    name = "iid"

    def divide(self, table: Table, seed: int) -> Divided:
        dealt = []
        for what, rows in own_parts(table, self.test_share, seed).items():
            enough(rows, self.n, what)
            dealt.append(np.array_split(rng.keyed(seed, "iid", what).permutation(rows), self.n))
        return numbered(*dealt)


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

    def divide(self, table: Table, seed: int) -> Divided:
        _at_most_classes("k", self.k, table)
        draw = rng.keyed(seed, "classes", "draw")
        shared = draw.permutation(table.classes)[: self.k]
        buckets = {}
        for c in range(table.classes):
            rows = np.flatnonzero((table.part == TRAIN) & (table.y == c))
            size = len(rows) // self.n
            shuffled = rng.keyed(seed, "classes", "shuffle", c).permutation(rows)
            buckets[c] = iter(shuffled[: size * self.n].reshape(self.n, size))
        train, test = [], []
        for _ in range(self.n):
            own = shared if self.shared_classes else draw.permutation(table.classes)[: self.k]
            pairs = [cut(next(buckets[int(c)]), self.test_share) for c in np.sort(own)]
            train.append(np.concatenate([a for a, _ in pairs]))
            test.append(np.concatenate([b for _, b in pairs]))
        return numbered(train, test)


@dataclass(frozen=True)
class Shards(Split):
    """FedDWA, pathological: sorted by label, cut into equal shards, two random ones per client.

    The same shard numbers are applied to the test part.
    """

    per_client: int = hyper(2, "shards per client", min=1)

    name = "shards"

    def divide(self, table: Table, seed: int) -> Divided:
        count = self.n * self.per_client
        owned = rng.keyed(seed, "shards").permutation(count).reshape(self.n, self.per_client)
        dealt = []
        for what, rows in own_parts(table, self.test_share, seed).items():
            enough(rows, count, what)
            shards = np.array_split(rows[np.argsort(table.y[rows], kind="stable")], count)
            dealt.append([np.concatenate([shards[s] for s in own]) for own in owned])
        return numbered(*dealt)


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

    def divide(self, table: Table, seed: int) -> Divided:
        dealt = []
        for what, rows in own_parts(table, self.test_share, seed).items():
            enough(rows, self.n, what)
            draw = rng.keyed(seed, "groups", what)
            dominant, rest = cut(draw.permutation(rows), 1 - self.dominant_share)
            dominant = dominant[np.argsort(table.y[dominant], kind="stable")]
            parts = np.array_split(draw.permutation(rest), self.n)
            for members, block in zip(
                self.members(), np.array_split(dominant, self.groups), strict=True
            ):
                pieces = np.array_split(draw.permutation(block), len(members))
                for i, piece in zip(members, pieces, strict=True):
                    parts[i] = np.concatenate([piece, parts[i]])
            dealt.append(parts)
        return numbered(*dealt)


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

    def divide(self, table: Table, seed: int) -> Divided:
        _at_most_classes("classes_per_client", self.classes_per_client, table)
        sets = self.class_sets(table.classes, seed)
        owners = [[i for i, own in enumerate(sets) if c in own] for c in range(table.classes)]
        dealt = []
        for what, rows in own_parts(table, self.test_share, seed).items():
            held: list[list[Rows]] = [[rows[:0]] for _ in range(self.n)]
            for c, own in enumerate(owners):
                deck = rng.keyed(seed, "round_robin", what, c).permutation(rows[table.y[rows] == c])
                for turn, i in enumerate(own):
                    held[i].append(deck[turn :: len(own)])
            dealt.append([np.concatenate(pieces) for pieces in held])
        return numbered(*dealt)


REGISTRY: dict[str, type[Split]] = {
    cls.name: cls for cls in (Iid, Classes, Shards, Groups, Dirichlet, RoundRobin, Natural)
}


def split(section: dict[str, Any]) -> Split:
    """{"name": "shards", "clients": 5} -> Shards(clients=5)."""
    return named(REGISTRY, section, "split")


def resolved(section: dict[str, Any]) -> dict[str, Any]:
    """The section with every option filled in."""
    made = split(section)
    return {"name": made.name, **asdict(made)}


def list_splits() -> list[dict[str, Any]]:
    """Every split: what it is, and its options with type, default and meaning."""
    return [
        {
            "name": name,
            "doc": (cls.__doc__ or "").split("\n")[0],
            "about": " ".join((cls.__doc__ or "").split()),
            "fields": describe(cls),
        }
        for name, cls in REGISTRY.items()
    ]


def _at_most_classes(key: str, value: int, table: Table) -> None:
    if value > table.classes:
        raise UserError(f"split.{key} is {value} but the data has {table.classes} classes")
