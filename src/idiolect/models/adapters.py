"""Adapters: a network of which only small parts train (`model.adapt`).

Everything else keeps its values, lies in memory once for all clients, and never travels. What is
left trainable is an ordinary tree: methods average, keep and send it as they do whole networks.
"""

from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from idiolect.core.net import find_head
from idiolect.errors import UserError, did_you_mean
from idiolect.models.low_rank import kind_for

PARTS = ("lora", "bias", "norm", "head")
FORM = "as in lora:8, bias, norm, head, or several: lora:8,head"


def adapted(module: nn.Module, spec: str, seed: int = 0) -> nn.Module:
    """A copy of the module of which only these parts train: `lora:r`, a difference of rank r beside
    the weights of linear layers, convolutions, embeddings and attention; `bias`, all biases;
    `norm`, the normalization layers; `head`, the layer that makes the logits."""
    parts = parse(spec)
    module = deepcopy(module).requires_grad_(False)
    head = _head_of(module) if "head" in parts else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if "lora" in parts:
            _add_low_rank(module, parts["lora"], head)
    for name, parameter in module.named_parameters():
        if "bias" in parts and "bias" in name.rpartition(".")[2]:
            parameter.requires_grad_(True)
    for layer in module.modules():
        if "norm" in parts and "Norm" in type(layer).__name__:
            layer.requires_grad_(True)
        elif isinstance(layer, _BatchNorm) and layer.track_running_stats:
            _hold_statistics(layer)
    if head is not None:
        head.requires_grad_(True)
    if not any(p.requires_grad for p in module.parameters()):
        raise UserError(f"model.adapt={spec}: the model has no such part; {FORM}")
    return module


def parse(spec: str) -> dict[str, int]:
    """`lora:8,head` as {"lora": 8, "head": 0}."""
    parts: dict[str, int] = {}
    for word in str(spec).split(","):
        name, colon, number = word.strip().partition(":")
        if name not in PARTS:
            raise did_you_mean(word.strip(), PARTS, "part of model.adapt")
        if (name == "lora") != bool(colon) or (colon and not number.strip().isdecimal()):
            raise UserError(f"model.adapt: '{word.strip()}' is not a part; {FORM}")
        parts[name] = int(number or 0)
        if name == "lora" and not 1 <= parts[name] <= 2**16:
            raise UserError(f"model.adapt: the rank of lora must be at least 1, got {number}")
    return parts


def _head_of(module: nn.Module) -> nn.Module:
    found, doubt = find_head(module)
    if found is None:
        raise UserError(f"model.adapt=head: {doubt}")
    return found[1]


def _add_low_rank(module: nn.Module, rank: int, head: nn.Module | None) -> None:
    apart = set() if head is None else set(head.modules())
    owners: dict[int, int] = {}
    for layer in module.modules():
        for p in layer.parameters(recurse=False):
            owners[id(p)] = owners.get(id(p), 0) + 1
    # A weight that two layers share has one value in the plain module: no room for two changes.
    chosen = [
        (layer, kind)
        for layer in module.modules()
        if layer not in apart
        and (kind := kind_for(layer)) is not None
        and all(owners[id(p)] == 1 for p in layer.parameters(recurse=False))
    ]
    if not chosen:
        raise UserError(
            "model.adapt=lora: the model has no linear layer, convolution, embedding or attention"
            " with a weight of its own"
        )
    for layer, kind in chosen:
        layer.__class__ = kind
        layer.add(rank)  # type: ignore[operator]
    for layer in module.modules():  # PyTorch's fast ways of inference see only the plain weights
        if isinstance(layer, nn.TransformerEncoderLayer):
            layer.activation_relu_or_gelu = 0
        if isinstance(layer, nn.TransformerEncoder):
            layer.use_nested_tensor = False


class FrozenBatchNorm(_NormBase):
    """BatchNorm as in a plain module that predicts: by statistics that never move."""

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.running_mean, self.running_var
        return F.batch_norm(x, mean, var, self.weight, self.bias, False, 0.0, self.eps)


def _hold_statistics(layer: _BatchNorm) -> None:
    """Statistics become frozen parameters: in the module once, under their names."""
    layer.__class__ = FrozenBatchNorm  # type: ignore[assignment]
    for name in ("running_mean", "running_var"):
        value = layer._buffers.pop(name)
        assert value is not None
        layer.register_parameter(name, nn.Parameter(value, requires_grad=False))
