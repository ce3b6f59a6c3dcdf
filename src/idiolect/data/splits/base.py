"""Split: what all splits share. Options, checks, validation part, clients held out."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from idiolect.core import rng
from idiolect.core.fields import hyper
from idiolect.core.registry import Named, Registry
from idiolect.data.pool import TEST, TRAIN, Pool
from idiolect.errors import UserError

Rows = NDArray[np.int64]
Divided = dict[str, tuple[Rows, Rows]]


@dataclass(frozen=True)
class Share:
    """What one client holds: row numbers of the pool."""

    name: str
    train: Rows
    test: Rows
    val: Rows


class SplitRegistry(Registry):
    """Splits by name. Someone's own may be a class or a function."""

    def accepted(self, found: Any, name: str) -> type[Any]:
        from idiolect.data.own.split_code import own_split

        return own_split(found, name)


@dataclass(frozen=True)
class Split(Named):
    """How the samples of a pool come to clients. Fields are the options of `split:`."""

    clients: int | None = hyper(20, "number of clients", min=1)
    val_share: float = hyper(0.0, "share of training samples kept for validation", min=0, below=1)
    unseen: int = hyper(0, "clients, chosen by seed, that never take part in training", min=0)
    test_share: float = hyper(0.2, "test share if the dataset has no test part", above=0, below=1)
    local_labels: bool = hyper(
        False, "count the classes of every client from 0, so that outputs mean different classes"
    )

    section = "split"
    by_class: ClassVar[bool] = True  # divides by the samples' classes
    registry: ClassVar[Registry] = SplitRegistry("split", "idiolect.splits")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clients is not None:
            self._check_unseen(self.clients)

    @property
    def n(self) -> int:
        """Number of clients, where the split decides it and not the data."""
        if self.clients is None:
            raise UserError(f"split '{self.name}' needs split.clients")
        return self.clients

    def divide(self, pool: Pool, seed: int) -> Divided:
        """Client name -> training and test rows."""
        raise NotImplementedError

    def shares(self, pool: Pool, seed: int) -> list[Share]:
        """What divide() gives to every client, less a validation part of its training rows.

        Rows keep the order divide() gave them: methods with a fixed batch order see it.
        """
        if not pool.task.has_classes and (self.by_class or self.local_labels):
            raise UserError(
                f"split '{self.name}' needs samples with one class each; for {pool.task.name} use"
                " split iid or natural, without local_labels"
            )
        if self.clients is not None and self.clients > len(pool):
            raise UserError(
                f"split.clients is {self.clients} but the data has {len(pool)} samples; lower it"
            )
        shares = []
        divided = checked(self.divide(pool, seed), len(pool), f"split '{self.name}'")
        for i, (name, (train, test)) in enumerate(divided.items()):
            val = train[:0]
            if self.val_share:
                kept, rest = cut(rng.keyed(seed, "val", i).permutation(len(train)), self.val_share)
                train, val = train[np.sort(kept)], train[np.sort(rest)]
            shares.append(Share(name, train, test, val))
        return shares

    def labels(self, pool: Pool, shares: list[Share]) -> tuple[NDArray[np.int64], int]:
        """Labels of all samples, and the number of classes a model must tell apart: with
        `local_labels`, that of the client with most (PFLEGO's FedAvg, 55 on Omniglot)."""
        if not self.local_labels:
            return pool.y, pool.classes
        held = np.concatenate([np.concatenate([s.train, s.val, s.test]) for s in shares])
        if len(np.unique(held)) < len(held):
            raise UserError(
                f"split '{self.name}' gives a row to two clients, who would count its class"
                " differently; leave local_labels out"
            )
        y, most = pool.y.copy(), 1
        for share in shares:
            known = np.unique(pool.y[np.concatenate([share.train, share.val])])
            unknown = np.setdiff1d(pool.y[share.test], known)  # after those that can be learnt
            number = {int(c): k for k, c in enumerate([*known, *unknown])}
            rows = np.concatenate([share.train, share.val, share.test])
            y[rows] = [number[int(c)] for c in pool.y[rows]]
            most = max(most, len(number))
        return y, most

    def held_out(self, clients: int, seed: int) -> tuple[int, ...]:
        """Ids of the unseen clients."""
        self._check_unseen(clients)
        chosen = rng.keyed(seed, "unseen").choice(clients, self.unseen, replace=False)
        return tuple(sorted(int(i) for i in chosen))

    def _check_unseen(self, clients: int) -> None:
        if self.unseen >= clients:
            raise UserError(
                f"split.unseen is {self.unseen} of {clients} clients: none is left to train;"
                " lower it"
            )


def checked(divided: Divided, samples: int, what: str) -> Divided:
    """What a split gave, if every client has whole numbers of rows that exist."""
    if not isinstance(divided, dict) or not divided:
        raise UserError(f"{what} must give a dict of clients, got {type(divided).__name__}")
    for name, pair in divided.items():
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise UserError(
                f"{what} must give (train rows, test rows) for client '{name}'; mend it"
            )
        for rows in pair:
            sound = isinstance(rows, np.ndarray) and rows.ndim == 1 and rows.dtype == np.int64
            if not sound or (len(rows) and not 0 <= rows.min() <= rows.max() < samples):
                raise UserError(
                    f"{what} must give client '{name}' int64 row numbers from 0 to {samples - 1};"
                    " mend it"
                )
        if len(np.unique(both := np.concatenate(pair))) < len(both):
            raise UserError(
                f"{what} gives client '{name}' a row twice, or for training and for testing; mend"
                " it"
            )
    return divided


def numbered(train: list[Rows], test: list[Rows]) -> Divided:
    """Clients that have no names are called "0", "1", ..."""
    return {str(i): pair for i, pair in enumerate(zip(train, test, strict=True))}


def cut(rows: Rows, share: float) -> tuple[Rows, Rows]:
    """Two parts: the last `share` of the rows is the second. The first is rounded down."""
    kept = int(len(rows) * (1 - share) + 1e-9)
    return rows[:kept], rows[kept:]


def train_and_test(pool: Pool, test_share: float, seed: int) -> dict[str, Rows]:
    """Training and test rows as the dataset's authors divided them. If they did not, a random
    `test_share` of every class is for testing."""
    if pool.has_test:
        return {
            "train": np.flatnonzero(pool.part == TRAIN),
            "test": np.flatnonzero(pool.part == TEST),
        }
    pairs = []
    has = pool.task.has_classes
    y, classes = (pool.y, pool.classes) if has else (np.zeros(len(pool), np.int64), 1)
    for c in range(classes):
        rows = rng.keyed(seed, "test part", c).permutation(np.flatnonzero(y == c))
        pairs.append(cut(rows, test_share))
    parts = [np.sort(np.concatenate(rows)) for rows in zip(*pairs, strict=True)]
    return dict(zip(("train", "test"), parts, strict=True))


def enough(rows: Rows, pieces: int, what: str) -> None:
    """Every client must get at least one sample of each part."""
    if len(rows) < pieces:
        raise UserError(
            f"{len(rows)} {what} samples are too few for {pieces} parts; lower split.clients"
        )


def at_most_classes(key: str, value: int, pool: Pool) -> None:
    """No client can have more classes than the data has."""
    if value > pool.classes:
        raise UserError(f"split.{key} is {value} but the data has {pool.classes} classes; lower it")
