"""Small pools to split."""

import numpy as np

from idiolect.data.pool import Pool
from idiolect.data.splits import split


def toy(per_class=60, classes=10, test_per_class=20, shuffle=True) -> Pool:
    """A dataset whose single pixel is the row number's low byte: only labels matter."""
    y = np.repeat(np.arange(classes), per_class)
    y_test = np.repeat(np.arange(classes), test_per_class)
    if shuffle:
        draw = np.random.default_rng(1)
        y, y_test = draw.permutation(y), draw.permutation(y_test)
    labels = np.concatenate([y, y_test]).astype(np.int64)
    part = np.repeat([0, 1], [len(y), len(y_test)]).astype(np.uint8)
    x = (np.arange(len(labels)) % 256).astype(np.uint8).reshape(-1, 1, 1, 1)
    return Pool(x=x, y=labels, part=part, classes=classes)


def with_writers(n=12, size=30, test=True) -> Pool:
    base = toy(per_class=n * size // 10, test_per_class=0)
    part = (np.arange(len(base)) % 5 == 0).astype(np.uint8) if test else base.part
    group = np.arange(len(base)) % n
    names = tuple(f"w{i}" for i in range(n))
    return Pool(base.x, base.y, part, base.classes, group=group, group_names=names)


def shares(pool, seed=0, **section):
    return split(section).shares(pool, seed)


def labels(pool, rows):
    return set(pool.y[rows].tolist())
