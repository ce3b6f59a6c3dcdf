"""A share of every client's own training samples, set apart by lot.

Methods that judge or mix received models on data the client does not train on (FedFomo, L2C), or on
a part of it (FedALA, FedRecon), divide the training samples here. Parts are weights per sample, so
scaled that the mean of `weight * loss` over all samples is the mean loss over the part.
"""

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Local, Net, Rows, Tree, cross_entropy


def weighted(net: Net, params: Tree, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Cross-entropy over a part of the samples."""
    return weight * cross_entropy(net, params, x, y)


def everything(local: Local) -> Rows:
    return local.rows(torch.ones_like(local.sizes).repeat_interleave(local.sizes.long()))


def split(local: Local, share: float, purpose: str) -> tuple[Rows, Rows]:
    """`share` of each client's samples, and the rest: at least one sample each, both the whole of
    a client with one sample. A share of 0 or 1 divides nothing: both are everything."""
    if not 0 < share < 1:
        return everything(local), everything(local)
    n = local.sizes
    # The first n numbers of a longer draw are the draw of n, so K clients together draw as one does
    lot = local.uniform((int(n.max()),), purpose)
    real = tree.beside(range(lot.shape[1]), n) < n[:, None]
    m = torch.minimum((share * n).round(), n - 1).clamp_min(1)
    ordered = torch.where(real, lot, torch.inf).sort(1).values
    last = ordered.gather(1, m.long()[:, None] - 1)
    inside = torch.where(lot <= last, (n / m)[:, None], 0.0)
    outside = torch.where(lot <= last, 0.0, (n / (n - m).clamp_min(1))[:, None])
    outside = torch.where(n[:, None] == 1, 1.0, outside)
    return local.rows(inside[real]), local.rows(outside[real])


def halves(local: Local) -> tuple[Rows, Rows]:
    """Every other sample of each client, the first among them, and the rest; a client's only sample
    is in both."""
    n = local.sizes
    at = tree.beside(range(int(n.max())), n)
    real, even = at < n[:, None], at % 2 == 0
    first = torch.where(even, (n / ((n + 1) // 2))[:, None], 0.0)
    second = torch.where(even, 0.0, (n / (n // 2).clamp_min(1))[:, None])
    second = torch.where(n[:, None] == 1, 1.0, second)
    return local.rows(first[real]), local.rows(second[real])


def loss(local: Local, params: Tree, part: Rows) -> Tensor:
    """`[K]`: each client's mean loss over a part of its samples."""
    losses = local.forward(weighted, params, extra=(part,)).values
    return torch.segment_reduce(losses, "mean", lengths=local.sizes.long(), unsafe=True)
