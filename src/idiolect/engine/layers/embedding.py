"""Embeddings of K clients at once: their tables lie one after the other, so that one gather reads
all rows and one scatter adds up all gradients."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from idiolect.engine.layers.stack_function import in_vmap, with_clients


def look_up(
    index: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """`F.embedding` inside a function transform. Gradients are dense: so are those of others."""
    if max_norm is not None:
        raise NotImplementedError("an embedding with max_norm changes its weights in passing")
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    if not in_vmap():
        return F.embedding(index, weight, padding_idx, scale_grad_by_freq=scale_grad_by_freq)
    rows: Tensor = OneTable.apply(index, weight, padding_idx, scale_grad_by_freq)
    return rows


class OneTable(Function):
    """Under `vmap` one table of all clients."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        raise AssertionError("only called inside vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...

    @staticmethod
    def vmap(
        info: Any,
        dims: tuple[Any, ...],
        index: Tensor,
        weight: Tensor,
        padding: int | None,
        by_frequency: bool,
    ) -> tuple[Tensor, int]:
        if dims[1] is None and not by_frequency:  # the same table for all
            moved = index.movedim(dims[0], 0)
            return _embedded(moved, weight, padding, by_frequency), 0
        index = with_clients(index, dims[0], info.batch_size)
        weight = with_clients(weight, dims[1], info.batch_size)
        clients, words = weight.shape[:2]
        first = torch.arange(clients, device=index.device) * words
        where = index + first.view(-1, *[1] * (index.ndim - 1))
        out = _embedded(where, weight.flatten(0, 1), None, by_frequency)
        if padding is not None:  # those rows get no gradient
            out = torch.where((index == padding).unsqueeze(-1), out.detach(), out)
        return out, 0


def _embedded(index: Tensor, weight: Tensor, padding: int | None, by_frequency: bool) -> Tensor:
    call = look_up if in_vmap() else F.embedding
    return call(index, weight, padding, scale_grad_by_freq=by_frequency)
