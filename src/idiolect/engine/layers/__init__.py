"""Layers that compute for K clients at once better than PyTorch's own under `vmap`."""

from typing import Any

import torch
from torch import nn

from idiolect.engine.layers.conv import Conv1d, Conv2d
from idiolect.engine.layers.dropout import KeyedDropout
from idiolect.engine.layers.linear import StackedLinear, onednn_is_faster
from idiolect.engine.layers.norm import (
    StackedBatchNorm2d,
    StackedLayerNorm,
    can_leave_out_filling,
    with_filling,
)
from idiolect.engine.layers.pool import MaxPool2d, PixelMaxPool2d
from idiolect.engine.layers.pooled_conv import PooledConv2d
from idiolect.engine.layers.recurrent import StackedRecurrent
from idiolect.engine.layers.stack_function import fused
from idiolect.engine.layers.stacked_low_rank import STACKED as LOW_RANK

__all__ = ["can_leave_out_filling", "install", "lay_by_planes", "with_filling"]

NORMS_BY_PLANES = (nn.GroupNorm, nn.LocalResponseNorm, nn.modules.instancenorm._InstanceNorm)


def install(module: nn.Module, device: torch.device) -> None:
    """Let the module's plain layers compute our way; their parameters and names stay."""
    for layers in module.modules():
        if isinstance(layers, nn.Sequential):
            _pool_first(layers)
    better: list[Any] = [Conv1d, Conv2d, StackedLayerNorm]
    if device.type != "cuda":  # other layers of PyTorch's are as good there, and cost less per call
        better += [KeyedDropout, PixelMaxPool2d]
        better += [StackedLinear] if onednn_is_faster() else []
    else:
        better += [StackedBatchNorm2d]
        better += [StackedLinear] if fused() is None else [StackedLinear, MaxPool2d]
    for layer in module.modules():
        for kind in better:
            if kind.replaces(layer):
                layer.__class__ = kind
        layer.__class__ = LOW_RANK.get(type(layer), type(layer))
        if StackedRecurrent.replaces(layer):
            layer.__class__ = StackedRecurrent.of(type(layer))
        if type(layer).__module__ == nn.ReLU.__module__ and vars(layer).get("inplace"):
            vars(layer)["inplace"] = False  # our layers give views: PyTorch lets nobody write there
    for layers in module.modules():
        if isinstance(layers, nn.Sequential):
            _pool_inside(layers)
    norms = any(isinstance(layer, NORMS_BY_PLANES) for layer in module.modules())
    if norms and device.type == "cuda":
        lay_by_planes(module)  # else every norm would turn its images around, twice


def lay_by_planes(module: nn.Module) -> bool:
    """Let convolutions give images plane by plane in memory. Whether that changes anything."""
    changed = [m for m in module.modules() if isinstance(m, Conv2d) and not m.planes]
    for conv in changed:
        conv.planes = True
    return bool(changed)


def _pool_first(layers: nn.Sequential) -> None:
    """Exchange ReLU and the max-pooling behind it: the same values and gradients, on fewer."""
    for at in range(len(layers) - 1):
        relu, pool = layers[at], layers[at + 1]
        if type(relu) is nn.ReLU and type(pool) is nn.MaxPool2d and not pool.return_indices:
            layers[at], layers[at + 1] = pool, relu


def _pool_inside(layers: nn.Sequential) -> None:
    """Let a convolution pool what it computes, where max-pooling follows, and rectify it, where a
    ReLU follows that; their places are empty."""
    for at in range(len(layers) - 1):
        conv, pool = layers[at], layers[at + 1]
        if type(conv) is Conv2d and type(pool) is MaxPool2d and pool.side == 2:
            conv.__class__, layers[at + 1] = PooledConv2d, nn.Identity()
            if len(layers) > at + 2 and type(layers[at + 2]) is nn.ReLU:
                vars(conv)["rectified"], layers[at + 2] = True, nn.Identity()
