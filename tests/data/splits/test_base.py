"""What all splits share."""

import dataclasses

import numpy as np
import pytest

from idiolect.data.own.split_code import own_split
from idiolect.data.splits import Split, split
from idiolect.data.splits.base import Share
from idiolect.errors import UserError
from tests.data.splits.pools import shares, toy, with_writers

PARTS = ("train", "test", "val")
SECTIONS = [
    {"name": "iid", "clients": 7},
    {"name": "classes", "clients": 5, "k": 4},
    {"name": "classes", "clients": 5, "k": 4, "shared_classes": True},
    {"name": "shards", "clients": 10},
    {"name": "pathological", "clients": 10},
    {"name": "groups", "clients": 9},
    {"name": "groups", "clients": 8, "dominant_classes": 3},
    {"name": "dirichlet", "clients": 6, "alpha": 0.3},
    {"name": "dirichlet", "clients": 6, "alpha": 0.3, "cap": False, "min_size": 5},
    {"name": "dirichlet", "clients": 6, "alpha": 0.3, "cap": False, "merge": False, "min_size": 5},
    {"name": "round_robin", "clients": 12},
    {"name": "natural"},
]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda s: "-".join(map(str, s.values())))
def test_no_sample_twice_and_seed_decides(section):
    pool = with_writers() if section["name"] == "natural" else toy()
    first = shares(pool, 5, val_share=0.2, **section)
    every = np.concatenate([getattr(s, p) for s in first for p in PARTS])
    assert len(every) == len(np.unique(every))
    assert all(len(s.train) and len(s.test) and len(s.val) for s in first)
    again = shares(pool, 5, val_share=0.2, **section)
    other = shares(pool, 6, val_share=0.2, **section)

    def same(a, b):
        return all(
            np.array_equal(getattr(i, p), getattr(j, p))
            for i, j in zip(a, b, strict=True)
            for p in PARTS
        )

    assert same(first, again)
    assert not same(first, other)
    without = shares(pool, 5, **section)
    for a, b in zip(first, without, strict=True):
        assert sorted([*a.train, *a.val]) == sorted(b.train)
        assert np.array_equal(a.test, b.test)
        assert len(a.val) == len(b.train) - int(len(b.train) * 0.8 + 1e-9)


def test_every_split_is_tested_here():
    assert {s["name"] for s in SECTIONS} == set(Split.registry) - {"own"}  # which divides nothing


def test_without_a_test_part_a_share_of_each_class_stands_in():
    pool = toy(test_per_class=0)
    for name in ("iid", "shards", "groups", "round_robin"):
        held = shares(pool, name=name, clients=5, test_share=0.25)
        assert sum(len(s.test) for s in held) == 150
        held_out = np.concatenate([s.test for s in held])
        assert np.bincount(pool.y[held_out]).tolist() == [15] * 10


def test_unseen_clients_are_chosen_by_seed():
    made = split({"name": "iid", "clients": 20, "unseen": 5})
    assert made.held_out(20, 0) == made.held_out(20, 0) != made.held_out(20, 1)
    assert len(set(made.held_out(20, 0))) == 5


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"name": "iid", "clients": 0}, "clients must be at least 1"),
        ({"name": "iid", "clients": 5, "unseen": 5}, "none is left"),
        ({"name": "iid", "unseen": -1}, "unseen must be at least 0"),
        ({"name": "iid", "val_share": 1.0}, "val_share"),
        ({"name": "iid", "val_share": -0.1}, "val_share"),
        ({"name": "iid", "test_share": 0.0}, "test_share"),
        ({"name": "iid", "clients": 801}, "800 samples; lower"),
        ({"name": "iid", "clients": 300}, "200 test samples"),
        ({"name": "dirichlet", "alpha": 0}, "(alpha must be (above 0|a number))"),
        ({"name": "dirichlet", "alpha": -1.0}, "(alpha must be (above 0|a number))"),
        ({"name": "dirichlet", "alpha": float("nan")}, "(alpha must be (above 0|a number))"),
        ({"name": "dirichlet", "min_size": 0}, "min_size"),
        ({"name": "classes", "k": 11}, "k is 11 but the data has 10 classes"),
        ({"name": "classes", "k": 0}, "k must be at least 1"),
        ({"name": "round_robin", "classes_per_client": 11}, "10 classes"),
        ({"name": "shards", "per_client": 0}, "per_client"),
        ({"name": "pathological", "k": 11}, "10 classes; lower"),
        ({"name": "pathological", "clients": 120}, "test samples than clients; lower"),
        ({"name": "groups", "dominant_classes": 11}, "10 classes; lower"),
        ({"name": "groups", "groups": 30}, "20 clients; lower"),
        ({"name": "groups", "dominant_share": 1.5}, "dominant_share"),
        ({"name": "natural", "min_size": 0}, "min_size"),
    ],
)
def test_mistakes_are_one_line(section, words):
    with pytest.raises(UserError, match=words) as caught:
        shares(toy(), **section)
    assert "\n" not in str(caught.value)


def test_local_labels_count_every_clients_classes_from_0():
    pool = toy()
    section = {"name": "round_robin", "clients": 12, "classes_per_client": 3}
    made, told = split(section), split(section | {"local_labels": True})
    held = told.shares(pool, 0)
    for a, b in zip(held, made.shares(pool, 0), strict=True):
        assert np.array_equal(a.train, b.train)
    y, classes = told.labels(pool, held)
    assert classes == 3 and made.labels(pool, held) == (pool.y, 10)
    for share in held:
        own = np.unique(pool.y[share.train])  # the same map for training and test samples
        for rows in (share.train, share.test):
            assert np.array_equal(own[y[rows]], pool.y[rows])


def test_local_labels_leave_test_classes_nobody_learns_for_last():
    pool = toy(per_class=2, classes=3, test_per_class=2, shuffle=False)
    rows = np.arange(len(pool))
    train, test = rows[(pool.part == 0) & (pool.y > 0)], rows[pool.part == 1]
    y, classes = split({"name": "iid", "local_labels": True}).labels(
        pool, [Share("0", train, test, train[:0])]
    )
    assert classes == 3 and dict(zip(pool.y[test], y[test], strict=True)) == {1: 0, 2: 1, 0: 2}


def own(divided):
    """A split of the user's own that gives these rows."""

    def given(pool):
        return divided

    return own_split(given, "my.py:given")()


@pytest.mark.parametrize("rows", [([0, 1, 2], [2, 3]), ([0, 1, 1], [2, 3])])
def test_a_client_gets_no_row_twice(rows):
    """A test sample was among the training samples, and nobody said so."""
    with pytest.raises(UserError, match="gives client '1' a row twice, or for training and for te"):
        own([([8, 9], [10]), rows]).shares(toy(), 0)


def test_clients_may_share_rows_but_not_count_their_classes():
    pool, shared = toy(), own([([0, 1], [2]), ([1, 3], [2])])
    assert [len(s.train) for s in shared.shares(pool, 0)] == [2, 2]
    counted = dataclasses.replace(shared, local_labels=True)
    with pytest.raises(UserError, match="gives a row to two clients, who would count"):
        counted.labels(pool, counted.shares(pool, 0))
