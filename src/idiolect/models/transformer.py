"""Pieces of transformers: a layer with norms first, and the body of a vision transformer."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idiolect.errors import UserError
from idiolect.models.blocks import Shape, channels


class EncoderBlock(nn.Module):
    """Attention, then two linear layers, each around a way past it."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv: nn.Module = nn.Linear(width, 3 * width)
        self.out: nn.Module = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        seen = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)))
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp(self.norms[1](x))
        return out


class PatchEncoder(nn.Module):
    """An image as a sequence of patches, encoded; the mean over all of them."""

    def __init__(self, shape: Shape, width: int, depth: int, heads: int, patch: int):
        super().__init__()
        if shape[-1] % patch or shape[-2] % patch:
            raise UserError(
                f"images of {shape[-2]}x{shape[-1]} are not whole patches of {patch};"
                " give another model.patch"
            )
        if width % heads:
            raise UserError(f"model.width {width} is not a multiple of model.heads {heads}")
        self.patches = nn.Conv2d(channels(shape), width, patch, patch)
        places = (shape[-2] // patch) * (shape[-1] // patch)
        self.place = nn.Parameter(0.02 * torch.randn(places, width))
        self.layers = nn.Sequential(*(EncoderBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).mT + self.place
        out: Tensor = self.norm(self.layers(h)).mean(1)
        return out
