"""Layers with a difference of low rank (LoRA): the weight stays as it is, `lora_up @ lora_down` is
learnt beside it.

A plain layer becomes one of these by its class, so the names of its own parameters stay. The weight
is never added up with the difference while clients train: its product with the samples is the same
for all clients, and only the two thin products are each client's own.
"""

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DOWN, UP, ROWS = "lora_down", "lora_up", "lora_rows"


class LowRankLinear(nn.Linear):
    """`lora_down [r, I]`, `lora_up [O, r]`."""

    plain: ClassVar[tuple[type[nn.Module], ...]] = (nn.Linear,)
    lora_down: Tensor
    lora_up: Tensor

    def add(self, rank: int) -> None:
        _add(self, self.weight, (rank, self.in_features), (self.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        thin = F.linear(F.linear(x, self.lora_down), self.lora_up)
        return F.linear(x, self.weight, self.bias) + thin


class _LowRankConv(nn.Module):
    """A convolution to r channels, as the layer's own, then one of 1 x 1: `lora_down [r, C, ...]`,
    `lora_up [O, r]`."""

    def add(self: Any, rank: int) -> None:
        _add(self, self.weight, (rank, *self.weight.shape[1:]), (self.out_channels, rank))

    def forward(self: Any, x: Tensor) -> Tensor:
        thin = self._thin(x)
        change = (self.lora_up @ thin.flatten(-len(self.kernel_size))).unflatten(
            -1, thin.shape[-len(self.kernel_size) :]
        )
        return self._conv_forward(x, self.weight, self.bias) + change  # type: ignore[no-any-return]

    def _thin(self: Any, x: Tensor) -> Tensor:
        out: Tensor = self._conv_forward(x, self.lora_down, None)
        return out


class LowRankConv1d(_LowRankConv, nn.Conv1d):
    plain: ClassVar[tuple[type[nn.Module], ...]] = (nn.Conv1d,)


class LowRankConv2d(_LowRankConv, nn.Conv2d):
    plain: ClassVar[tuple[type[nn.Module], ...]] = (nn.Conv2d,)
    lora_down: Tensor


class LowRankConv3d(_LowRankConv, nn.Conv3d):
    plain: ClassVar[tuple[type[nn.Module], ...]] = (nn.Conv3d,)


class LowRankEmbedding(nn.Embedding):
    """`lora_rows [V, r]`, one row for every word, and `lora_up [D, r]`."""

    plain: ClassVar[tuple[type[nn.Module], ...]] = (nn.Embedding,)
    lora_rows: Tensor
    lora_up: Tensor

    def add(self, rank: int) -> None:
        """Rows start at zero: that of `padding_idx` gets no gradient and stays there."""
        like = self.weight
        setattr(self, ROWS, nn.Parameter(like.new_zeros(self.num_embeddings, rank)))
        setattr(self, UP, nn.Parameter(torch.randn(self.embedding_dim, rank).to(like)))

    def forward(self, x: Tensor) -> Tensor:
        thin = F.embedding(x, self.lora_rows, self.padding_idx)
        return super().forward(x) + F.linear(thin, self.lora_up)


class LowRankAttention(nn.MultiheadAttention):
    """`lora_down [r, E]` and `lora_up [3 E, r]` beside the weight that makes queries, keys and
    values; the output's layer is a `LowRankLinear`. PyTorch's own function would multiply by the
    summed weights, so the steps are written here."""

    plain: ClassVar[tuple[type[nn.Module], ...]] = (nn.MultiheadAttention,)
    lora_down: Tensor
    lora_up: Tensor

    def add(self, rank: int) -> None:
        _add(self, self.in_proj_weight, (rank, self.embed_dim), (3 * self.embed_dim, rank))
        out: Any = self.out_proj
        out.__class__ = LowRankLinear
        out.add(rank)

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if is_causal and attn_mask is None:
            raise RuntimeError("is_causal says what attn_mask is; give attn_mask too")
        lonely, first = query.ndim == 2, self.batch_first
        if lonely:  # one sample without a batch axis
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        q, k, v = (
            self._heads(t[None] if lonely else t if first else t.transpose(0, 1))
            for t in self._projected(query, key, value)
        )
        mask = self._mask(q, key_padding_mask, attn_mask)
        if need_weights:
            scores = q @ k.mT / math.sqrt(self.head_dim)
            shares = torch.softmax(scores if mask is None else scores + mask, -1)
            shares = F.dropout(shares, self.dropout, self.training)
            seen = shares @ v
        else:
            seen = F.scaled_dot_product_attention(
                *(q, k, v, mask), dropout_p=self.dropout if self.training else 0.0
            )
        out = self.out_proj(seen.transpose(1, 2).flatten(2))
        out = out[0] if lonely else out if first else out.transpose(0, 1)
        if not need_weights:
            return out, None
        shares = shares.mean(1) if average_attn_weights else shares
        return out, shares[0] if lonely else shares

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values; in one product where all come from the same."""
        if query is key and key is value:
            whole = self._product(query, self.in_proj_weight, self.in_proj_bias, self.lora_up)
            return whole.chunk(3, -1)
        bias = self.in_proj_bias
        biases = [None] * 3 if bias is None else bias.chunk(3)
        weights, ups = self.in_proj_weight.chunk(3), self.lora_up.chunk(3)
        given = zip((query, key, value), weights, biases, ups, strict=True)
        return tuple(self._product(*one) for one in given)

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None, up: Tensor) -> Tensor:
        return F.linear(x, weight, bias) + F.linear(F.linear(x, self.lora_down), up)

    def _heads(self, x: Tensor) -> Tensor:
        """`[B, L, E]` -> `[B, heads, L, E / heads]`."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _mask(self, q: Tensor, padding: Tensor | None, mask: Tensor | None) -> Tensor | None:
        """What is added to the scores; masks of truth values are true where nothing is seen."""
        if mask is not None and mask.ndim == 3:
            mask = mask.unflatten(0, (-1, self.num_heads))
        if padding is not None:
            padding = padding[:, None, None, :]
        found = [_added(m, q) for m in (mask, padding) if m is not None]
        return sum(found[1:], found[0]) if found else None


def _added(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf)


def _add(layer: nn.Module, like: Tensor, down: tuple[int, ...], up: tuple[int, ...]) -> None:
    """The two parts: random and zero, so that the layer computes what it did before."""
    start = torch.empty(down)
    nn.init.kaiming_uniform_(start, a=math.sqrt(5))
    layer.register_parameter(DOWN, nn.Parameter(start.to(like)))
    layer.register_parameter(UP, nn.Parameter(like.new_zeros(up)))


KINDS: tuple[type[Any], ...] = (
    *(LowRankLinear, LowRankConv1d, LowRankConv2d, LowRankConv3d),
    *(LowRankEmbedding, LowRankAttention),
)


def kind_for(layer: nn.Module) -> type[Any] | None:
    """What the layer becomes with a difference of low rank, if it can have one."""
    kind = next((k for k in KINDS if type(layer) in k.plain), None)
    if isinstance(layer, nn.MultiheadAttention):
        usual = layer._qkv_same_embed_dim and layer.bias_k is None and not layer.add_zero_attn
        return kind if usual else None
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) and layer.groups != 1:
        return None
    return None if isinstance(layer, nn.Embedding) and layer.max_norm is not None else kind


def merged(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state dict with its differences added to the weights: it loads into the plain module."""
    out = {n: v for n, v in state.items() if n.rpartition(".")[2] not in (DOWN, UP, ROWS)}
    for name, up in state.items():
        owner, dot, leaf = name.rpartition(".")
        if leaf != UP:
            continue
        weight = f"{owner}{dot}in_proj_weight"
        weight = weight if weight in state else f"{owner}{dot}weight"
        if (rows := f"{owner}{dot}{ROWS}") in state:
            change = state[rows] @ up.T
        else:
            change = up @ state[f"{owner}{dot}{DOWN}"].flatten(1)
        out[weight] = out[weight] + change.view_as(out[weight])
    return out
