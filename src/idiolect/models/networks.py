"""The papers' networks by name. A new one is a subclass of Model in this file, no more."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from idiolect.core.fields import hyper
from idiolect.core.form import EXACT, Form
from idiolect.errors import UserError
from idiolect.models.blocks import (
    BasicBlock,
    Categories,
    Network,
    Reader,
    SamePool,
    Shape,
    channels,
    conv_pools,
    flat_size,
    glorot,
    on_convs,
)
from idiolect.models.model import Model
from idiolect.models.transformer import PatchEncoder

LARGEST_VALUES = 1_000_000  # tokens or categories


@dataclass(frozen=True)
class SpflCnn(Model):
    """SPFL/PLGA: two 5x5 convolutions (20, 50), one hidden layer. Paper's table: hidden 512."""

    hidden: int = hyper(500, "units of the hidden layer", min=1)

    name = "spfl_cnn"

    def network(self, shape: Shape, classes: int) -> Network:
        return on_convs(conv_pools(shape, 20, 50), shape, classes, self.hidden)


@dataclass(frozen=True)
class Lenet(Model):
    """LeNet 6-16-120-84, the PLGA code's network for CIFAR-10."""

    name = "lenet"

    def network(self, shape: Shape, classes: int) -> Network:
        return on_convs(conv_pools(shape, 6, 16), shape, classes, 120, 84)


@dataclass(frozen=True)
class FeddwaCnn(Model):
    """FedDWA on CIFAR and CINIC: conv-ReLU-pool-BN twice (32, 64), FC 512 with dropout."""

    dropout: float = hyper(0.5, "share of features dropped in training", min=0, below=1)

    name = "feddwa_cnn"

    def network(self, shape: Shape, classes: int) -> Network:
        convs: list[nn.Module] = []
        for c_in, c_out in ((channels(shape), 32), (32, 64)):
            convs += [nn.Conv2d(c_in, c_out, 3), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(c_out)]
        flat = flat_size(convs, shape)
        body = nn.Sequential(
            *convs, nn.Flatten(), nn.Linear(flat, 512), nn.Dropout(self.dropout), nn.ReLU()
        )
        return Network(body, 512, classes)


@dataclass(frozen=True)
class FeddwaEmnist(Model):
    """FedDWA on EMNIST: two 5x5 convolutions (32, 64), FC 2048."""

    name = "feddwa_emnist"

    def network(self, shape: Shape, classes: int) -> Network:
        return on_convs(conv_pools(shape, 32, 64), shape, classes, 2048)


@dataclass(frozen=True)
class Resnet8(Model):
    """FedDWA on Tiny-ImageNet: three stages of one basic block, batch norm, Kaiming init."""

    width: int = hyper(16, "channels of the first stage", min=1)
    init: Literal["fan_in", "fan_out"] = hyper(
        "fan_in",
        "Kaiming by inputs, all layers (FedDWA); or by outputs, convolutions only",
    )

    name = "resnet8"

    def network(self, shape: Shape, classes: int) -> Network:
        body = nn.Sequential(
            nn.Conv2d(channels(shape), self.width, 3, padding=1, bias=False),
            nn.BatchNorm2d(self.width),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
            BasicBlock(self.width, self.width, stride=1),
            BasicBlock(self.width, 2 * self.width, stride=2),
            BasicBlock(2 * self.width, 4 * self.width, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        model = Network(body, 4 * self.width, classes)
        layers = (nn.Conv2d, nn.Linear) if self.init == "fan_in" else (nn.Conv2d,)
        for module in model.modules():
            if isinstance(module, layers):
                nn.init.kaiming_normal_(module.weight, mode=self.init, nonlinearity="relu")
        return model


@dataclass(frozen=True)
class PflegoMlp(Model):
    """PFLEGO on MNIST, Fashion-MNIST and EMNIST: one hidden layer of 200."""

    name = "pflego_mlp"

    def network(self, shape: Shape, classes: int) -> Network:
        return glorot(on_convs([], shape, classes, 200))


@dataclass(frozen=True)
class PflegoCifar(Model):
    """PFLEGO on CIFAR-10: two 5x5 convolutions (64), overlapping pools, FC 384, FC 192."""

    name = "pflego_cifar"

    def network(self, shape: Shape, classes: int) -> Network:
        convs: list[nn.Module] = []
        for c_in in (channels(shape), 64):
            convs += [nn.Conv2d(c_in, 64, 5, padding=2), nn.ReLU(), SamePool()]
        return glorot(on_convs(convs, shape, classes, 384, 192))


@dataclass(frozen=True)
class PflegoOmniglot(Model):
    """PFLEGO on Omniglot: four 3x3 convolutions (64), each pooled by 2; no batch norm."""

    name = "pflego_omniglot"

    def network(self, shape: Shape, classes: int) -> Network:
        convs = conv_pools(shape, 64, 64, 64, 64, kernel=3, padding=1)
        return glorot(on_convs(convs, shape, classes))


@dataclass(frozen=True)
class FedasCnn(Model):
    """FedAS (and PFLlib): two 5x5 convolutions (32, 64), FC 512."""

    hidden: int = hyper(512, "units of the hidden layer", min=1)

    name = "fedas_cnn"

    def network(self, shape: Shape, classes: int) -> Network:
        return on_convs(conv_pools(shape, 32, 64), shape, classes, self.hidden)


@dataclass(frozen=True)
class SimpleCnn(Model):
    """The `simple_cnn` of pfl-research's benchmarks: two 3x3 convolutions (32, 64), one pool, FC
    128, dropout .25 and .5, Glorot-uniform weights."""

    name = "simple_cnn"

    def network(self, shape: Shape, classes: int) -> Network:
        convs: list[nn.Module] = [
            *(nn.Conv2d(channels(shape), 32, 3), nn.ReLU()),
            *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        ]
        flat = [nn.Dropout(0.25), nn.Flatten(), nn.Linear(flat_size(convs, shape), 128), nn.ReLU()]
        model = Network(nn.Sequential(*convs, *flat, nn.Dropout(0.5)), 128, classes)
        for module in model.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.xavier_uniform_(module.weight)
        return model


@dataclass(frozen=True)
class CnnSmall(Model):
    """For small images such as the 8x8 digits: two padded 3x3 convolutions (16, 32)."""

    hidden: int = hyper(64, "units of the hidden layer", min=1)

    name = "cnn_small"

    def network(self, shape: Shape, classes: int) -> Network:
        convs = conv_pools(shape, 16, 32, kernel=3, padding=1)
        return on_convs(convs, shape, classes, self.hidden)


@dataclass(frozen=True)
class Vit(Model):
    """A vision transformer; with `adapt` a large one is personalized by small parts."""

    width: int = hyper(192, "features of every patch", min=1)
    depth: int = hyper(6, "layers", min=1)
    heads: int = hyper(3, "heads of attention; width is a multiple of it", min=1)
    patch: int = hyper(4, "pixels of a patch's side", min=1)

    name = "vit"

    def network(self, shape: Shape, classes: int) -> Network:
        channels(shape)
        body = PatchEncoder(shape, self.width, self.depth, self.heads, self.patch)
        return Network(body, self.width, classes)


@dataclass(frozen=True)
class Mlp(Model):
    """Fully connected, `layers` hidden layers of `hidden` units; images or vectors."""

    hidden: int = hyper(64, "units of the hidden layer", min=1)
    layers: int = hyper(1, "hidden layers", min=1)

    name = "mlp"

    def network(self, shape: Shape, classes: int) -> Network:
        return on_convs([], shape, classes, *[self.hidden] * self.layers)


@dataclass(frozen=True)
class Linear(Model):
    """Softmax regression: the body only flattens."""

    name = "linear"

    def network(self, shape: Shape, classes: int) -> Network:
        return on_convs([], shape, classes)


@dataclass(frozen=True)
class Gru(Model):
    """Sequences of tokens (embedded) or of quantities: a GRU; a class for every step, or one from
    the mean over the steps that are no padding."""

    width: int = hyper(16, "numbers that stand for a token", min=1)
    hidden: int = hyper(64, "units of the GRU", min=1)

    name = "gru"

    def built(self, shape: Shape, classes: int, form: Form) -> nn.Module:
        if form.fields or len(shape) > 2 or (len(form.codes) > 1 and any(form.codes)):
            raise UserError(
                f"model 'gru' needs sequences [T] or [T, D], got samples of shape {list(shape)};"
                " tables with categories: model 'tabular'"
            )
        given = self.width if form.codes else shape[1] if len(shape) == 2 else 1
        values = form.codes[0] if form.codes else 0
        _check_values(values)
        body = Reader(values, given, self.hidden, form.padded, bool(form.steps))
        return Network(body, self.hidden, classes)


@dataclass(frozen=True)
class Tabular(Model):
    """Tables: every category is embedded, quantities go beside; then fully connected."""

    width: int = hyper(4, "numbers that stand for a category", min=1)
    hidden: int = hyper(64, "units of the hidden layer", min=1)
    layers: int = hyper(1, "hidden layers", min=1)

    name = "tabular"

    def built(self, shape: Shape, classes: int, form: Form) -> nn.Module:
        if form.fields or form.steps or form.padded or len(shape) != 1:
            raise UserError(
                f"model 'tabular' needs a table, got samples of shape {list(shape)}; use 'gru' for"
                " sequences"
            )
        _check_values(sum(form.codes))
        columns = Categories(form.codes or (0,), shape[0], self.width)
        layers: list[nn.Module] = [columns]
        for given in [columns.features, *[self.hidden] * (self.layers - 1)]:
            layers += [nn.Linear(given, self.hidden), nn.ReLU()]
        model = Network(nn.Sequential(*layers), self.hidden, classes)
        setattr(model, EXACT, bool(columns.coded))
        return model


def _check_values(count: int) -> None:
    """An embedding has a row for every value."""
    if count > LARGEST_VALUES:
        raise UserError(
            f"samples hold codes up to {count - 1}, and an embedding of {LARGEST_VALUES} values is"
            " the largest; number them from 0, or use model 'mlp' for quantities"
        )
