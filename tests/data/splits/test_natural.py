"""The split `natural`."""

import numpy as np
import pytest

from idiolect.data.pool import TEST, Pool
from idiolect.errors import UserError
from tests.data.splits.pools import shares, with_writers


def test_natural_keeps_the_writers_own_parts():
    pool = with_writers()
    held = shares(pool, name="natural")
    assert [s.name for s in held] == [f"w{i}" for i in range(12)]
    for i, share in enumerate(held):
        assert (pool.group[share.train] == i).all() and (pool.part[share.train] != TEST).all()
        assert (pool.part[share.test] == TEST).all()
    few = shares(pool, name="natural", clients=5)
    assert len(few) == 5 and {s.name for s in few} < {s.name for s in held}


def test_natural_without_a_test_part_and_min_size():
    pool = with_writers(test=False)
    assert all(len(s.train) == 22 and len(s.test) == 8 for s in shares(pool, name="natural"))
    with pytest.raises(UserError, match="no client has 99 samples"):
        shares(pool, name="natural", min_size=99)
    with pytest.raises(UserError, match="only 12 clients"):
        shares(pool, name="natural", clients=13)


def test_natural_drops_writers_without_training_samples():
    pool = with_writers()
    pool.part[pool.group == 3] = TEST
    assert "w3" not in [s.name for s in shares(pool, name="natural")]


def omniglot_like() -> Pool:
    """2 alphabets of 3 characters, 20 drawings each, four rotations."""
    drawings = 2 * 3 * 20
    y = np.tile(np.repeat(np.arange(6), 20), 4)
    drawing = np.tile(np.arange(drawings), 4)
    x = np.zeros((len(y), 1, 1, 1), np.uint8)
    part = np.zeros(len(y), np.uint8)
    return Pool(x, y, part, 6, group=y // 3, group_names=("A", "B"), drawing=drawing)


def test_omniglot_drawings_are_divided_before_rotation():
    pool = omniglot_like()
    assert pool.drawing is not None
    for share in shares(pool, name="natural"):
        assert not set(pool.drawing[share.train]) & set(pool.drawing[share.test])
        assert np.bincount(pool.y[share.train]).max() == 60
        assert np.bincount(pool.y[share.test]).max() == 20


def test_omniglot_paper_split_leaks_rotations():
    pool = omniglot_like()
    assert pool.drawing is not None
    for share in shares(pool, name="natural", paper_split=True):
        assert set(pool.drawing[share.train]) & set(pool.drawing[share.test])
        assert np.bincount(pool.y[share.train]).max() == 60
