"""The split `shards`."""

from tests.data.splits.pools import labels, shares, toy


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
