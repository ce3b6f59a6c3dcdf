"""Weights on the simplex: non-negative, summing to one, for every client its own (FedPAC)."""

from __future__ import annotations

import torch
from torch import Tensor

PATIENCE = 20  # steps between two looks at whether anything still moves


def combination(v: Tensor, h: Tensor, most: int = 5000) -> Tensor:
    """Row i minimizes `sum_j a_j^2 v_j + |sum_j a_j (h_i - h_j)|^2` over the simplex, by projected
    gradient for all rows at once. With G = <h_j, h_k> half the gradient of row i on the simplex is
    `v_j a_j + (G a)_j - G_ij` plus what is the same for every j, which the projection removes: one
    product of m x m matrices per step, and nothing larger in memory."""
    flat = h.flatten(1).double()
    flat = flat - flat.mean(0)
    v, gram = v.double().clamp_min(0), flat @ flat.T
    curved = gram + v.diag()
    steepest = torch.minimum(curved.norm(), curved.abs().sum(1).max())  # both bound its curvature
    step = 1 / steepest.clamp_min(torch.finfo(gram.dtype).tiny)
    alpha = torch.full_like(gram, 1 / len(v))
    ahead, t = alpha, torch.ones_like(gram[:, :1])
    for done in range(most):  # accelerated; a row whose momentum goes uphill starts it anew
        gradient = v * ahead + ahead @ gram - gram
        new = simplex(ahead - step * gradient)
        moved = new - alpha
        uphill = (gradient * moved).sum(1, keepdim=True) > 0
        t = torch.where(uphill, 1.0, t)
        following = (1 + (1 + 4 * t.square()).sqrt()) / 2
        ahead = torch.where(uphill, new, new + (t - 1) / following * moved)
        alpha, t = new, following
        if done % PATIENCE == 0 and moved.abs().max() < 1e-13:
            break
    return alpha.to(h.dtype)


def simplex(z: Tensor) -> Tensor:
    """The nearest point of every row with non-negative entries that sum to 1."""
    high = z.sort(1, descending=True).values
    excess = (high.cumsum(1) - 1) / torch.ones_like(z).cumsum(1)
    last = (high > excess).sum(1, keepdim=True) - 1
    return (z - excess.gather(1, last)).clamp_min(0)
