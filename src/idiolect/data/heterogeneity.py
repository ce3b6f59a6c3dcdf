"""How much clients differ, before anything is trained: their labels and their sizes.

Only training and validation samples are looked at, and only of clients that take part.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from idiolect.core import rng
from idiolect.core.task import IGNORED
from idiolect.data.federation import Federation

SHUFFLES = 5  # random divisions that tell what chance alone does


@dataclass(frozen=True)
class Heterogeneity:
    """`skew` is 0 where all clients have the same labels; `by_chance` is what clients of these
    sizes would have if samples were dealt at random."""

    what: str
    skew: float
    by_chance: float
    smallest: int
    median: float
    largest: int

    @property
    def beyond_chance(self) -> float:
        return max(0.0, self.skew - self.by_chance)


LABELS = "mean total variation distance of a client's labels from those of all"
TARGETS = "spread of the clients' target means, in standard deviations of all targets"


def heterogeneity(federation: Federation) -> Heterogeneity:
    rows = [torch.cat([federation.train[i], federation.val[i]]) for i in federation.seen]
    sizes = np.array([len(one) for one in rows])
    y = federation.y[torch.cat(rows)].numpy()
    client = np.repeat(np.arange(len(rows)), sizes)
    by_chance = [
        _skew(federation, client, y[rng.keyed(0, "heterogeneity", k).permutation(len(y))])
        for k in range(SHUFFLES)
    ]
    return Heterogeneity(
        what=TARGETS if federation.task.name == "regression" else LABELS,
        skew=_skew(federation, client, y),
        by_chance=float(np.mean(by_chance)),
        smallest=int(sizes.min()),
        median=float(np.median(sizes)),
        largest=int(sizes.max()),
    )


def _skew(federation: Federation, client: np.ndarray, y: np.ndarray) -> float:
    clients = int(client[-1]) + 1
    if federation.task.name == "regression":
        sums = np.zeros((clients, y.shape[1]))
        np.add.at(sums, client, y)
        means = sums / np.bincount(client)[:, None]
        spread = y.std(0)
        return float((means.std(0) / np.where(spread > 0, spread, 1)).mean())
    counts = _counts(federation, client, y, clients)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    pooled = counts.sum(0) / max(counts.sum(), 1)
    return float(0.5 * np.abs(shares - pooled).sum(1).mean())


def _counts(federation: Federation, client: np.ndarray, y: Any, clients: int) -> np.ndarray:
    """How often every client has every label, `[clients, classes]`."""
    classes = federation.classes
    if federation.task.name == "multilabel":
        counts = np.zeros((clients, classes))
        np.add.at(counts, client, y)
        return counts
    if federation.task.per_step:
        client, real = np.repeat(client, y.shape[1]), y.reshape(-1) != IGNORED
        client, y = client[real], y.reshape(-1)[real]
    return np.bincount(client * classes + y, minlength=clients * classes).reshape(clients, classes)
