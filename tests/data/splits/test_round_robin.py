"""The split `round_robin`."""

import numpy as np

from idiolect.data.splits import split
from tests.data.splits.pools import labels, shares, toy


def test_round_robin_deals_one_by_one():
    pool = toy()
    made = split({"name": "round_robin", "clients": 12, "classes_per_client": 3})
    sets = made.class_sets(10, 0)
    held = made.shares(pool, 0)
    for what in ("train", "test"):
        for c in range(10):
            counts = [int((pool.y[getattr(s, what)] == c).sum()) for s in held]
            owners = [i for i, own in enumerate(sets) if c in own]
            assert all(counts[i] == 0 for i in range(12) if i not in owners)
            dealt = [counts[i] for i in owners]
            assert sum(dealt) == (60 if what == "train" else 20)
            # dealt cyclically in id order: earlier owners have at most one more
            assert dealt == sorted(dealt, reverse=True) and dealt[0] - dealt[-1] <= 1


def test_round_robin_covers_every_class():
    for seed in range(20):
        made = split({"name": "round_robin", "clients": 6, "classes_per_client": 2})
        sets = made.class_sets(10, seed)
        assert set(np.concatenate(sets).tolist()) == set(range(10))
        assert all(len(set(own.tolist())) == 2 for own in sets)
    odd = split({"name": "round_robin", "clients": 4, "classes_per_client": 3})
    for seed in range(20):
        assert set(np.concatenate(odd.class_sets(10, seed)).tolist()) == set(range(10))


def test_round_robin_all_classes_is_no_personalization():
    pool = toy()
    held = shares(pool, name="round_robin", clients=5, classes_per_client=10)
    assert all(len(labels(pool, s.train)) == 10 for s in held)
