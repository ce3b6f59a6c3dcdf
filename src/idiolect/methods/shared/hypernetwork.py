"""A network that makes every client's head from its class distribution (Fed-RoD)."""

from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Tree


def hypernetwork(head: Tree, hidden: int) -> Tree:
    """Two layers over the classes that generate zeros at the start. The width and the start of the
    first layer, uniform and the same for all, are choices made here."""
    like = tree.any_leaf(head)
    classes = len(like)
    dice = torch.Generator().manual_seed(0)
    w = 2 * tree.beside(torch.rand(hidden, classes, generator=dice), like) - 1
    start = (w * sqrt(6 / classes)).to(like.dtype)
    nu = {"in.weight": start, "in.bias": like.new_zeros(hidden)}
    for name, x in head.items():
        nu[f"out.weight.{name}"] = x.new_zeros(*x.shape, hidden)
        nu[f"out.bias.{name}"] = torch.zeros_like(x)
    return nu


def generate(nu: Tree, a: Tensor) -> Tree:
    """The head for the class distribution `a` of one client, or of K."""
    hidden = F.relu((nu["in.weight"] @ a[..., None])[..., 0] + nu["in.bias"])
    head = {}
    for name, bias in unprefixed(nu, "out.bias.").items():
        column = hidden.reshape(*a.shape[:-1], *[1] * (bias.ndim - a.ndim), -1, 1)
        head[name] = (nu[f"out.weight.{name}"] @ column)[..., 0] + bias
    return head


def unprefixed(params: Tree, prefix: str) -> Tree:
    """The leaves whose names begin with `prefix`, without it."""
    return {n.removeprefix(prefix): x for n, x in params.items() if n.startswith(prefix)}
