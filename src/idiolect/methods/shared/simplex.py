"""Weights on the simplex: non-negative, summing to one, for every client its own (FedPAC)."""

import torch
from torch import Tensor

PATIENCE = 64  # steps before the first look at whether the solution can be told
TOGETHER = 2**24  # numbers in the matrices of a solution that are there at once
ROUNDING = 1e-12


def combination(v: Tensor, h: Tensor, most: int = 5000) -> Tensor:
    """Row i minimizes `sum_j a_j^2 v_j + |sum_j a_j (h_i - h_j)|^2` over the simplex. With
    G = <h_j, h_k> half the gradient of row i on the simplex is `v_j a_j + (G a)_j - G_ij` plus what
    is the same for every j, which a projection removes: one product of m x m matrices per step of
    projected gradient for all rows. It soon tells which weights are zero and takes long about the
    others, so these are solved for after 64, 128, 256, … steps, until that is the minimum."""
    flat = h.flatten(1).double()
    flat = flat - flat.mean(0)
    gram, v = flat @ flat.T, v.double()
    largest = torch.maximum(gram.diagonal().max(), v.max())
    v = v.clamp_min(ROUNDING * torch.where(largest > 0, largest, 1.0))
    curved = gram + v.diag()
    step = 1 / torch.minimum(curved.norm(), curved.abs().sum(1).max())  # both bound its curvature
    alpha = torch.full_like(gram, 1 / len(v))
    ahead, t = alpha, torch.ones_like(gram[:, :1])
    for done in range(1, most + 1):  # accelerated; a row whose momentum goes uphill starts it anew
        gradient = ahead @ curved - gram
        new = simplex(ahead - step * gradient)
        moved = new - alpha
        uphill = (gradient * moved).sum(1, keepdim=True) > 0
        t = torch.where(uphill, 1.0, t)
        following = (1 + (1 + 4 * t.square()).sqrt()) / 2
        ahead = torch.where(uphill, new, new + (t - 1) / following * moved)
        alpha, t = new, following
        if done >= PATIENCE and done.bit_count() == 1:
            exact, least = solution(curved, gram, alpha > 0)
            if least.all() or not moved.abs().max() > ROUNDING:  # or nothing is a number any more
                alpha = torch.where(least, exact, alpha)
                break
    return alpha.to(h.dtype)


def solution(curved: Tensor, gram: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """The minimum of every row with just these weights free and the others zero; and whether it is
    the minimum on the simplex: none is negative, and none that is zero would rather grow."""
    most = max(1, int(free.sum(1).max()))
    places = free.byte().argsort(1, descending=True)[:, :most]
    inside = free.gather(1, places)
    eye = torch.ones_like(gram[0, :most]).diag()
    rows = zip(*(x.split(max(1, TOGETHER // most**2)) for x in (places, inside, gram)), strict=True)
    weights = []
    for at, real, own in rows:
        matrix = curved[at[:, :, None], at[:, None, :]]
        matrix = torch.where(real[:, :, None] & real[:, None, :], matrix, eye)
        one = real.to(gram.dtype)
        factor = torch.linalg.cholesky_ex(matrix).L
        sides = torch.stack([own.gather(1, at) * one, one], 2)
        x, y = torch.cholesky_solve(sides, factor).unbind(2)
        level = (1 - x.sum(1, keepdim=True)) / y.sum(1, keepdim=True)
        weights.append(torch.zeros_like(own).scatter(1, at, x + level * y))
    alpha = torch.cat(weights)
    slope = alpha @ curved - gram
    slope = slope - (alpha * slope).sum(1, keepdim=True)
    blur = ROUNDING * (alpha.abs() @ curved.abs() + gram.abs())
    least = torch.where(free, alpha >= 0, slope >= -blur).all(1, keepdim=True)
    return alpha, least


def simplex(z: Tensor) -> Tensor:
    """The nearest point of every row with non-negative entries that sum to 1."""
    high = z.sort(1, descending=True).values
    excess = (high.cumsum(1) - 1) / torch.ones_like(z).cumsum(1)
    last = ((high > excess).sum(1, keepdim=True) - 1).clamp_min(0)  # none if nothing is a number
    return (z - excess.gather(1, last)).clamp_min(0)
