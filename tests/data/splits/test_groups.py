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


@pytest.mark.parametrize(("classes", "dominant"), [(10, 3), (100, 20), (200, 40)])
def test_dominant_classes_as_stated(classes, dominant):
    """All clients of one size; 80 % from the classes of the group, the rest from all alike."""
    pool = toy(per_class=100, classes=classes, test_per_class=50)
    made = split({"name": "groups", "clients": 20, "dominant_classes": dominant})
    held, sets = made.shares(pool, 0), made.class_sets(classes, 0)
    assert [len(own) for own in sets] == [dominant] * 4
    for what in ("train", "test"):
        assert len({len(getattr(share, what)) for share in held}) == 1
    for own, members in zip(sets, made.members(), strict=True):
        for i in members:
            counts = np.bincount(pool.y[held[i].train], minlength=classes)
            size, other = counts.sum(), np.setdiff1d(np.arange(classes), own)
            assert counts[own].sum() == pytest.approx(
                0.8 * size + 0.2 * size * dominant / classes, rel=0.02, abs=2
            )
            assert np.ptp(counts[own]) <= 2 and np.ptp(counts[other]) <= 1
    largest = max(np.bincount(np.concatenate([pool.y[s.train] for s in held])))
    assert 90 <= largest <= 100  # as large as the most wanted class allows
