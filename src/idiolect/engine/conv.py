"""Convolution as unfold + matrix product: stacked over clients it is one batched GEMM."""

from __future__ import annotations

from copy import deepcopy

import torch.nn.functional as F
from torch import Tensor, nn


class UnfoldConv2d(nn.Conv2d):
    """The same layer, the same numbers up to rounding."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        assert not isinstance(self.padding, str)
        (ph, pw), (sh, sw), (dh, dw) = self.padding, self.stride, self.dilation
        height = (input.shape[-2] + 2 * ph - dh * (weight.shape[-2] - 1) - 1) // sh + 1
        width = (input.shape[-1] + 2 * pw - dw * (weight.shape[-1] - 1) - 1) // sw + 1
        columns = F.unfold(input, weight.shape[-2:], self.dilation, (ph, pw), self.stride)
        out = columns.transpose(1, 2).flatten(0, 1) @ weight.flatten(1).T
        if bias is not None:
            out = out + bias
        batch = input.shape[0]
        return out.reshape(batch, height, width, -1).permute(0, 3, 1, 2)


def unfold_convolutions(module: nn.Module) -> nn.Module:
    """A copy of the module whose plain 2-D convolutions go through `unfold`."""
    module = deepcopy(module)
    for layer in module.modules():
        plain = type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"
        if plain and not isinstance(layer.padding, str):
            layer.__class__ = UnfoldConv2d
    return module
