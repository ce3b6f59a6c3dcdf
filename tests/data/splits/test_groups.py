"""The split `groups`."""

import numpy as np
import pytest

from idiolect.data.splits import split
from tests.data.splits.pools import toy


def test_groups_fractions_and_leftover_clients():
    pool = toy(per_class=400, test_per_class=100)
    made = split({"name": "groups", "clients": 10})
    assert [len(m) for m in made.members()] == [2, 2, 2, 4]
    held = made.shares(pool, 0)
    assert sum(len(s.train) for s in held) == 4000 and sum(len(s.test) for s in held) == 1000
    for g, members in enumerate(made.members()):
        for i in members:
            counts = np.bincount(pool.y[held[i].train], minlength=10)
            # 80 % in four label blocks of 2.5 classes: this group's own, the rest spread evenly
            own = counts[int(2.5 * g) : int(np.ceil(2.5 * (g + 1)))].sum()
            assert own >= 800 / len(members)
            assert len(held[i].train) == pytest.approx(800 / len(members) + 80, abs=1)
            assert (counts > 0).sum() == 10
