"""Networks people train, for `idiolect bench nets`: plain PyTorch, nothing made for stacks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idiolect import models
from idiolect.models.transformer import EncoderBlock

CLASSES = 10
IMAGE = (3, 32, 32)
WORDS, SENTENCE = 8192, 64


@dataclass(frozen=True)
class NetEntry:
    """How to build a network, and what one sample is; `build(True)` is a small one of its kind."""

    build: Callable[[bool], nn.Module]
    shape: tuple[int, ...] = IMAGE
    tokens: bool = False


def mlp(small: bool) -> nn.Module:
    wide = 16 if small else 512
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(3 * 32 * 32, wide),
        nn.ReLU(),
        nn.Linear(wide, wide),
        nn.ReLU(),
        nn.Linear(wide, CLASSES),
    )


def fedas_cnn(small: bool) -> nn.Module:
    return models.build({"name": "cnn_small" if small else "fedas_cnn"}, IMAGE, CLASSES)


class _Block(nn.Module):
    """Two convolutions with a way around them."""

    def __init__(self, c_in: int, c_out: int, stride: int, norm: Callable[[int], nn.Module]):
        super().__init__()
        self.one = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([norm(c_out), norm(c_out)])
        self.around: nn.Module = nn.Identity()
        if stride > 1 or c_in != c_out:
            self.around = nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), norm(c_out))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[1](self.two(F.relu(self.norms[0](self.one(x)))))
        return F.relu(h + self.around(x))


class _ResNet(nn.Module):
    """Four stages (three for ResNet-8) for small images."""

    def __init__(self, widths: tuple[int, ...], blocks: int, norm: Callable[[int], nn.Module]):
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.norm = norm(widths[0])
        stages, c_in = [], widths[0]
        for at, c in enumerate(widths):
            for block in range(blocks):
                stages.append(_Block(c_in, c, 2 if at and not block else 1, norm))
                c_in = c
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(c_in, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stages(F.relu(self.norm(self.stem(x))))
        out: Tensor = self.head(h.mean((2, 3)))
        return out


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(min(32, channels // 4), channels)


def resnet8(norm: Callable[[int], nn.Module]) -> Callable[[bool], nn.Module]:
    return lambda small: _ResNet((8, 8, 8) if small else (64, 128, 256), 1, norm)


def resnet18(norm: Callable[[int], nn.Module]) -> Callable[[bool], nn.Module]:
    return lambda small: _ResNet((8, 8) if small else (64, 128, 256, 512), 2, norm)


class _Reader(nn.Module):
    """Reads an image as 96 rows of 32 values and answers after the last."""

    def __init__(self, kind: type[nn.RNNBase], small: bool):
        super().__init__()
        self.small, units = small, 8 if small else 128
        self.rnn = kind(32, units, batch_first=True)  # type: ignore[call-arg, arg-type]
        self.head = nn.Linear(units, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1, 2)
        out: Tensor = self.head(self.rnn(rows[:, ::12] if self.small else rows)[0][:, -1])
        return out


class _Adapted(nn.Module):
    """A frozen linear layer with a trained difference of low rank."""

    def __init__(self, layer: nn.Linear, rank: int):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) + self.up(self.down(x))
        return out


class _ViT(nn.Module):
    """ViT-tiny on patches of 4 x 4; with a `rank`, only low-rank parts and the head train."""

    def __init__(self, small: bool, rank: int | None = None):
        super().__init__()
        width, depth, heads, patch = (24, 2, 3, 8) if small else (192, 12, 3, 4)
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.place = nn.Parameter(0.02 * torch.randn((32 // patch) ** 2, width))
        self.layers = nn.Sequential(*(EncoderBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        if rank is not None:
            self.requires_grad_(False)
            for layer in self.layers:
                layer.qkv, layer.out = _Adapted(layer.qkv, rank), _Adapted(layer.out, rank)  # type: ignore[arg-type]
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).mT + self.place
        out: Tensor = self.head(self.norm(self.layers(h)).mean(1))
        return out


class _TextTransformer(nn.Module):
    """Six layers of PyTorch's own on an embedding of tokens."""

    def __init__(self, small: bool):
        super().__init__()
        width, depth, heads = (16, 2, 2) if small else (256, 6, 4)
        self.words = nn.Embedding(WORDS, width)
        self.place = nn.Parameter(0.02 * torch.randn(SENTENCE, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(self.words(x) + self.place).mean(1))
        return out


ZOO = {
    "mlp": NetEntry(mlp),
    "fedas_cnn": NetEntry(fedas_cnn),
    "resnet8-gn": NetEntry(resnet8(group_norm)),
    "resnet8-bn": NetEntry(resnet8(nn.BatchNorm2d)),
    "resnet18-gn": NetEntry(resnet18(group_norm)),
    "resnet18-bn": NetEntry(resnet18(nn.BatchNorm2d)),
    "gru": NetEntry(lambda small: _Reader(nn.GRU, small)),
    "lstm": NetEntry(lambda small: _Reader(nn.LSTM, small)),
    "vit-tiny": NetEntry(_ViT),
    "text-transformer": NetEntry(_TextTransformer, (SENTENCE,), tokens=True),
    "lora": NetEntry(lambda small: _ViT(small, rank=8)),
}
