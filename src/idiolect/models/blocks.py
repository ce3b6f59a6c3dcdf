"""Pieces of networks: Network with its body and head, blocks, pools, starting weights."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from idiolect.errors import UserError

Shape = tuple[int, ...]


class Network(nn.Module):
    """head(body(x)). Methods that personalize a part find it by these two names."""

    def __init__(self, body: nn.Module, features: int, classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits


class SamePool(nn.Module):
    """Max-pooling 3x3, stride 2, padded as TensorFlow's "same": n -> ceil(n/2), 32 -> 16 -> 8.

    TensorFlow pads an even side after the end only, an odd side on both ends.
    """

    def forward(self, x: Tensor) -> Tensor:
        padding = (x.shape[-2] % 2, x.shape[-1] % 2)
        return F.max_pool2d(x, 3, stride=2, padding=padding, ceil_mode=True)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut; 1x1 convolution where the shape changes."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(c_out),
            nn.ReLU(),
            nn.Conv2d(c_out, c_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(c_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or c_in != c_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(c_in, c_out, 1, stride=stride, bias=False), nn.BatchNorm2d(c_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + self.shortcut(x))


def channels(shape: Shape) -> int:
    """Channels of an image; an error if samples are not images."""
    if len(shape) != 3:
        raise UserError(
            f"this model needs images [C, H, W] but samples have shape {list(shape)};"
            " use model 'mlp' or 'linear'"
        )
    return shape[0]


def conv_pools(shape: Shape, *widths: int, kernel: int = 5, padding: int = 0) -> list[nn.Module]:
    """Convolution, ReLU and max-pooling by 2, once for each number of channels in `widths`."""
    layers: list[nn.Module] = []
    for c_in, c_out in pairwise((channels(shape), *widths)):
        layers += [nn.Conv2d(c_in, c_out, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
    return layers


def flat_size(convs: list[nn.Module], shape: Shape) -> int:
    """Number of features after the convolutions (batch norm keeps the shape)."""
    x = torch.zeros(2, *shape)
    try:
        with torch.no_grad():
            for layer in convs:
                if not isinstance(layer, nn.BatchNorm2d):
                    x = layer(x)
    except RuntimeError:
        raise UserError(
            f"images of {shape[1]}x{shape[2]} are too small for this model;"
            " use 'cnn_small', 'mlp' or 'linear'"
        ) from None
    return x[0].numel()


def on_convs(convs: list[nn.Module], shape: Shape, classes: int, *hidden: int) -> Network:
    """Convolutions, then one linear layer with a ReLU for each width in `hidden`, then the head."""
    features = flat_size(convs, shape)
    layers: list[nn.Module] = [*convs, nn.Flatten()]
    for width in hidden:
        layers += [nn.Linear(features, width), nn.ReLU()]
        features = width
    return Network(nn.Sequential(*layers), features, classes)


def glorot(model: Network) -> Network:
    """PFLEGO's starting point: Glorot-normal weights, small normal biases."""
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_normal_(module.weight)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.01)
    return model


class Reader(nn.Module):
    """A sequence of tokens (`values` of them; 0: of quantities) through a GRU: the features of
    every step, or their mean over the steps that are no padding (token 0)."""

    def __init__(self, values: int, given: int, hidden: int, padded: bool, per_step: bool) -> None:
        super().__init__()
        self.padded, self.per_step = padded, per_step
        self.embedding = nn.Embedding(values, given) if values else None
        self.gru = nn.GRU(given, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            steps = self.embedding(x)
        else:
            steps = x if x.ndim == 3 else x.unsqueeze(-1)
        h: Tensor = self.gru(steps)[0]
        if self.per_step:
            return h
        if not self.padded:
            return h.mean(1)
        real = (x != 0).to(h.dtype).unsqueeze(-1)
        return (h * real).sum(1) / real.sum(1).clamp_min(1)


class Categories(nn.Module):
    """A row of a table as features: categories embedded, from one table for all columns; then
    quantities as they are. `codes`: values of each column, 0 for a quantity."""

    first: Tensor  # where the values of each category begin in the table

    def __init__(self, codes: tuple[int, ...], columns: int, width: int) -> None:
        super().__init__()
        codes = codes * columns if len(codes) == 1 else codes
        self.coded = [k for k, count in enumerate(codes) if count]
        self.plain = [k for k, count in enumerate(codes) if not count]
        counts = torch.tensor([codes[k] for k in self.coded], dtype=torch.int64)
        self.register_buffer("first", counts.cumsum(0) - counts, persistent=False)
        self.embedding = nn.Embedding(int(counts.sum()), width) if self.coded else None
        self.features = len(self.coded) * width + len(self.plain)

    def forward(self, x: Tensor) -> Tensor:
        plain = x[..., self.plain]
        if self.embedding is None:
            return plain
        looked_up = self.embedding(x[..., self.coded].to(torch.int64) + self.first).flatten(-2)
        return torch.cat([looked_up, plain.to(looked_up.dtype)], -1)
