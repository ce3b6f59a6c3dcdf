"""The split `iid`."""

from idiolect.data.pool import TEST
from tests.data.splits.pools import shares, toy


def test_iid_keeps_the_test_part_apart():
    pool = toy()
    for share in shares(pool, name="iid", clients=10):
        assert len(share.train) == 60 and len(share.test) == 20
        assert (pool.part[share.test] == TEST).all() and (pool.part[share.train] != TEST).all()
