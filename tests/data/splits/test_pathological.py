"""The split `pathological`."""

import numpy as np
import pytest

from idiolect.data.splits import split
from tests.data.splits.pools import labels, shares, toy


@pytest.mark.parametrize(("classes", "clients", "k"), [(10, 20, 2), (100, 20, 6), (200, 20, 10)])
def test_exactly_k_classes_with_equal_amounts(classes, clients, k):
    pool = toy(per_class=80, classes=classes, test_per_class=20)
    for share in shares(pool, name="pathological", clients=clients, k=k):
        assert len(labels(pool, share.train)) == k
        assert labels(pool, share.train) == labels(pool, share.test)
        for rows in (share.train, share.test):
            counts = np.bincount(pool.y[rows])
            assert len(set(counts[counts > 0])) == 1


def test_classes_have_as_many_owners_and_nothing_is_left_where_it_divides():
    pool = toy()
    held = shares(pool, name="pathological", clients=20)
    assert sum(len(s.train) for s in held) == 600 and sum(len(s.test) for s in held) == 200
    sets = split({"name": "pathological", "clients": 7, "k": 3}).class_sets(10, 0)
    assert set(np.bincount(np.concatenate(sets))) == {2, 3}
