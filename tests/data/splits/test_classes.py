"""The split `classes`."""

import numpy as np

from idiolect.data.pool import TEST
from tests.data.splits.pools import labels, shares, toy


def test_classes_buckets():
    """floor(n_class / N) per bucket, first 80 % of each for training, training part only."""
    pool = toy(per_class=63)
    held = shares(pool, name="classes", clients=5, k=4)
    assert len({frozenset(labels(pool, s.train)) for s in held}) > 1
    for share in held:
        both = np.concatenate([share.train, share.test])
        assert (pool.part[both] != TEST).all()
        assert labels(pool, share.train) == labels(pool, share.test)
        counts = np.bincount(pool.y[both], minlength=10)
        assert sorted(counts[counts > 0]) == [12] * 4
        train = np.bincount(pool.y[share.train], minlength=10)
        assert sorted(train[train > 0]) == [9] * 4  # int(0.8 * 12)


def test_classes_shared():
    pool = toy()
    held = shares(pool, name="classes", clients=5, k=4, shared_classes=True)
    assert len({frozenset(labels(pool, s.train)) for s in held}) == 1
