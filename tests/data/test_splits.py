"""The papers' partitions, property by property."""

import numpy as np
import pytest

from idiolect.data.pool import TEST, Pool
from idiolect.data.splits import Split, split
from idiolect.errors import UserError

PARTS = ("train", "test", "val")


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


def shares(pool, seed=0, **section):
    return split(section).shares(pool, seed)


def labels(pool, rows):
    return set(pool.y[rows].tolist())


def with_writers(n=12, size=30, test=True) -> Pool:
    base = toy(per_class=n * size // 10, test_per_class=0)
    part = (np.arange(len(base)) % 5 == 0).astype(np.uint8) if test else base.part
    group = np.arange(len(base)) % n
    names = tuple(f"w{i}" for i in range(n))
    return Pool(base.x, base.y, part, base.classes, group=group, group_names=names)


SECTIONS = [
    {"name": "iid", "clients": 7},
    {"name": "classes", "clients": 5, "k": 4},
    {"name": "classes", "clients": 5, "k": 4, "shared_classes": True},
    {"name": "shards", "clients": 10},
    {"name": "groups", "clients": 9},
    {"name": "dirichlet", "clients": 6, "alpha": 0.3},
    {"name": "dirichlet", "clients": 6, "alpha": 0.3, "cap": False, "min_size": 5},
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
    assert {s["name"] for s in SECTIONS} == set(Split.registry)


def test_iid_keeps_the_test_part_apart():
    pool = toy()
    for share in shares(pool, name="iid", clients=10):
        assert len(share.train) == 60 and len(share.test) == 20
        assert (pool.part[share.test] == TEST).all() and (pool.part[share.train] != TEST).all()


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


def test_shards_one_or_two_classes_and_the_same_in_test():
    pool = toy()
    held = shares(pool, name="shards", clients=20)
    for share in held:
        assert 1 <= len(labels(pool, share.train)) <= 2
        assert labels(pool, share.train) == labels(pool, share.test)
        assert len(share.train) == 30 and len(share.test) == 10
    assert sum(len(s.train) for s in held) == 600
    assert any(len(labels(pool, s.train)) == 2 for s in held)


def test_shards_of_100_classes_give_5_or_6():
    pool = toy(per_class=100, classes=100, test_per_class=20)
    for share in shares(pool, name="shards", clients=20):
        assert 5 <= len(labels(pool, share.train)) <= 6


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
        ({"name": "groups", "groups": 30}, "20 clients; lower"),
        ({"name": "groups", "dominant_share": 1.5}, "dominant_share"),
        ({"name": "natural", "min_size": 0}, "min_size"),
    ],
)
def test_mistakes_are_one_line(section, words):
    with pytest.raises(UserError, match=words) as caught:
        shares(toy(), **section)
    assert "\n" not in str(caught.value)
