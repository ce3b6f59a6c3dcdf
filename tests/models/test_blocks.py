"""Pieces of networks."""

import torch

from idiolect.models.blocks import SamePool


def test_same_pool_pads_like_tensorflow():
    pool = SamePool()
    for n in range(1, 12):
        assert pool(torch.zeros(1, 1, n, n)).shape[-1] == -(-n // 2)
    even = torch.arange(6.0).view(1, 1, 1, 6).expand(1, 1, 6, 6)
    assert pool(even)[0, 0, 0].tolist() == [2, 4, 5]  # windows 0-2, 2-4, 4-(6)
    odd = torch.arange(5.0).view(1, 1, 1, 5).expand(1, 1, 5, 5)
    assert pool(odd)[0, 0, 0].tolist() == [1, 3, 4]  # windows (-1)-1, 1-3, 3-(5)
    assert pool(-1 - even).max() < 0  # the padding never wins
