"""A share of every client's own training samples, set apart by lot.

Methods that judge or mix received models on data the client does not train on (FedFomo, L2C), or on
a part of it (FedALA), divide the training samples here. Parts are weights per sample, scaled so
that the mean of `weight * loss` over all samples is the mean loss over the part.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from idiolect.method import Tree, cross_entropy

if TYPE_CHECKING:
    from idiolect.local import Local, Rows
    from idiolect.net import Net


def weighted(net: Net, params: Tree, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Cross-entropy over a part of the samples."""
    return weight * cross_entropy(net, params, x, y)


def _one(net: Net, params: Tree, x: Tensor, y: Tensor) -> Tensor:
    return torch.ones_like(y)


def split(local: Local, share: float, purpose: str) -> tuple[Rows, Rows]:
    """`share` of each client's samples, and the rest: at least one sample each, both the whole of
    a client with one sample. A share of 0 or 1 divides nothing: both are everything."""
    rows = local.forward(_one, {})
    n = local.sizes
    if not 0 < share < 1:
        everything = replace(rows, values=rows.values.to(n.dtype))
        return everything, everything
    # The first n numbers of a longer draw are the draw of n, so K clients together draw as one does
    lot = local.uniform((int(n.max()),), purpose)
    real = torch.arange(lot.shape[1], device=n.device) < n[:, None]
    m = torch.minimum((share * n).round(), n - 1).clamp_min(1)
    ordered = torch.where(real, lot, torch.inf).sort(1).values
    last = ordered.gather(1, m.long()[:, None] - 1)
    inside = torch.where(lot <= last, (n / m)[:, None], 0.0)
    outside = torch.where(lot <= last, 0.0, (n / (n - m).clamp_min(1))[:, None])
    outside = torch.where(n[:, None] == 1, 1.0, outside)
    return replace(rows, values=inside[real]), replace(rows, values=outside[real])


def mean(local: Local, rows: Rows) -> Tensor:
    """`[K]`: mean of the rows of each client."""
    return (local.class_mean(rows) * local.counts).sum(1) / local.sizes


def loss(local: Local, params: Tree, part: Rows) -> Tensor:
    """`[K]`: each client's mean loss over a part of its samples."""
    return mean(local, local.forward(weighted, params, extra=(part,)))
