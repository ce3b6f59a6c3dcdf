"""Attention of K clients at once: clients join the batch, so that PyTorch's own kernels compute all
of them in one call. Attention has no weights, so nothing else is needed."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from idiolect.engine.layers.stack_function import in_vmap, with_clients


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`F.scaled_dot_product_attention` inside a function transform."""
    options: dict[str, Any] = {
        "dropout_p": dropout_p,
        "is_causal": is_causal,
        "enable_gqa": enable_gqa,
    }
    if in_vmap():
        joined: Tensor = JoinedAttention.apply(q, k, v, attn_mask, options | {"scale": scale})
        return joined
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill(~attn_mask, -math.inf)
    return written_out(q, k, v, attn_mask, scale=scale, **options)


class JoinedAttention(Function):
    """Under `vmap` a call of PyTorch's attention with the clients in the batch."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        raise AssertionError("only called inside vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        n, (*tensors, options) = info.batch_size, args
        mask, mask_dim = tensors.pop(), dims[3]
        q, k, v = (with_clients(t, d, n) for t, d in zip(tensors, dims, strict=False))
        if mask is not None:
            mask = _fitting(with_clients(mask, mask_dim, n), q)
        lead = q.shape[:-2]
        q, k, v = (_four_axes(t) for t in (q, k, v))
        mask = None if mask is None else _four_axes(mask)
        call = attend if in_vmap() else F.scaled_dot_product_attention
        return call(q, k, v, mask, **options).reshape(*lead, q.shape[-2], v.shape[-1]), 0


def _fitting(mask: Tensor, q: Tensor) -> Tensor:
    """A mask `[K, ..., L, S]` with as many axes as the queries, and their batch."""
    mask = mask.reshape(len(mask), *[1] * (q.ndim - mask.ndim), *mask.shape[1:])
    if q.ndim > 4:  # the batch will be joined with the clients: it cannot be left out
        mask = mask.expand(*q.shape[: q.ndim - 3], *mask.shape[-3:])
    return mask


def _four_axes(x: Tensor) -> Tensor:
    """What PyTorch's kernels take: batch, heads, places, values."""
    if x.ndim == 3:
        return x.unsqueeze(1)
    return x.flatten(0, x.ndim - 4) if x.ndim > 4 else x


def written_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    scale: float | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> Tensor:
    """The same by elementary operations, which have derivatives of any order."""
    if enable_gqa:
        times = q.shape[-3] // k.shape[-3]
        k, v = (t.repeat_interleave(times, -3) for t in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    shares = torch.softmax(scores if mask is None else scores + mask, -1)
    return F.dropout(shares, dropout_p) @ v if dropout_p else shares @ v
