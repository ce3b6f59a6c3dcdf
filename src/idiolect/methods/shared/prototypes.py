"""Class prototypes: the mean feature of each class, averaged over clients (FedProto, FedPAC)."""

import torch
from torch import Tensor

from idiolect.core.method import Net, Tree


def aligned(
    net: Net, params: Tree, x: Tensor, y: Tensor, target_CD: Tensor, pull_C: Tensor
) -> Tensor:
    """Cross-entropy plus `pull` times the mean squared distance to the class's target."""
    h = net.features(params, x)
    distance = (h - target_CD[y]).square().mean(1)
    return net.loss_of(net.classify(params, h), y) + pull_C[y] * distance


def class_average(means_KCD: Tensor, weight_KC: Tensor, old_CD: Tensor) -> Tensor:
    """Mean over clients of each class's row; a class without weight keeps the old one."""
    weight_KC = weight_KC.to(means_KCD.dtype)
    total = weight_KC.sum(0)[:, None]
    mean = (weight_KC[..., None] * means_KCD).sum(0) / total.clamp_min(1)
    return torch.where(total > 0, mean, old_CD)
