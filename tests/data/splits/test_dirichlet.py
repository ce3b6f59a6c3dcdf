"""The split `dirichlet`."""

import numpy as np
import pytest

from idiolect.data.pool import TEST
from idiolect.errors import UserError
from tests.data.splits.pools import labels, shares, toy


def test_dirichlet_merges_and_divides():
    pool = toy()
    held = shares(pool, name="dirichlet", clients=5, alpha=0.5, test_share=0.2)
    assert sum(len(s.train) + len(s.test) for s in held) == len(pool)
    for share in held:
        n = len(share.train) + len(share.test)
        assert n >= 20 and len(share.train) == int(0.8 * n + 1e-9)
    assert any((pool.part[s.train] == TEST).any() for s in held)


def test_dirichlet_cap_limits_the_largest_client():
    """A client that holds total / N gets no further class: at most total / N plus one class."""
    pool = toy(per_class=80, test_per_class=20)
    for seed in range(5):
        section = {"name": "dirichlet", "clients": 10, "alpha": 0.1, "min_size": 1}
        capped = [len(s.train) + len(s.test) for s in shares(pool, seed, **section)]
        assert max(capped) < 100 + 100
    free = [
        max(len(s.train) + len(s.test) for s in shares(pool, seed, cap=False, **section))
        for seed in range(5)
    ]
    assert max(free) > 200


def test_dirichlet_smaller_alpha_is_more_heterogeneous():
    pool = toy(per_class=200)

    def classes(alpha):
        held = shares(pool, name="dirichlet", clients=5, alpha=alpha)
        return np.mean([len(labels(pool, s.train)) for s in held])

    assert classes(0.05) < classes(100.0) == 10


def test_dirichlet_tiny_alpha_gives_no_nan():
    held = shares(toy(), name="dirichlet", clients=5, alpha=1e-4, min_size=2)
    assert sum(len(s.train) + len(s.test) for s in held) == 800


def test_dirichlet_gives_up_and_says_what_to_change():
    with pytest.raises(UserError, match=r"best of 20 draws.*raise split.alpha.*split.min_size"):
        shares(toy(), name="dirichlet", clients=40, alpha=0.01, min_size=20, cap=False, tries=20)
    with pytest.raises(UserError, match="need 1200 samples, the data has 800"):
        shares(toy(), name="dirichlet", clients=30, min_size=40)


def test_dirichlet_unmerged_gives_the_same_shares_of_both_parts():
    """FedDWA's text: client m gets the fraction p_cm of the training samples of class c."""
    pool = toy(per_class=400, test_per_class=200)
    held = shares(pool, name="dirichlet", clients=5, alpha=0.5, merge=False, cap=False)
    assert sum(len(s.train) for s in held) == 4000 and sum(len(s.test) for s in held) == 2000
    for share in held:
        assert (pool.part[share.train] != TEST).all() and (pool.part[share.test] == TEST).all()
        train, test = (np.bincount(pool.y[r], minlength=10) for r in (share.train, share.test))
        assert np.abs(train / 400 - test / 200).max() < 0.01
