"""A share of every client's own training samples, set apart by lot.

Methods that judge or mix received models on data the client does not train on (FedFomo, L2C), or on
a part of it (FedALA, FedRecon), divide the training samples here.
"""

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Local, Tree, cross_entropy


def split(local: Local, share: float, purpose: str) -> tuple[Local, Local]:
    """`share` of each client's samples, and the rest: at least one sample each, both the whole of
    a client with one sample. A share of 0 or 1 divides nothing: both are everything."""
    if not 0 < share < 1:
        return local, local
    # The first n numbers of a longer draw are the draw of n, so K clients together draw as one does
    lots = local.uniform((max(local.lengths),), purpose)
    first, second = [], []
    for lot, n in zip(lots, local.lengths, strict=True):
        order = lot[:n].argsort()
        count = max(1, min(round(share * n), n - 1))
        first.append(order[:count].sort().values)
        second.append(order[count if n > 1 else 0 :].sort().values)
    return local.part(first), local.part(second)


def halves(local: Local) -> tuple[Local, Local]:
    """Every other sample of each client, the first among them, and the rest; a client's only sample
    is in both."""
    every = [tree.beside(range(n), local.sizes) for n in local.lengths]
    odd = [at[1::2] if len(at) > 1 else at for at in every]
    return local.part([at[::2] for at in every]), local.part(odd)


def loss(part: Local, params: Tree) -> Tensor:
    """`[K]`: each client's mean loss over its samples."""
    losses = part.forward(cross_entropy, params).values
    return torch.segment_reduce(losses, "mean", lengths=part.sizes.long(), unsafe=True)
