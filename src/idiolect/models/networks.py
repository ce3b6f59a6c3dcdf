"""The papers' networks, each a `body` that ends in flat features and a linear `head`."""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from idiolect.errors import UserError, did_you_mean

Shape = tuple[int, ...]


class Network(nn.Module):
    """head(body(x)): methods that personalize the head find it by these two names."""

    def __init__(self, body: nn.Module, features: int, classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits


def spfl_cnn(shape: Shape, classes: int, hidden: int = 500) -> Network:
    """SPFL/PLGA: two 5x5 convolutions (20, 50), one hidden layer. Paper's table: hidden 512."""
    convs = [*_conv_pool(_channels(shape), 20), *_conv_pool(20, 50)]
    return _on_convs(convs, shape, classes, hidden)


def lenet(shape: Shape, classes: int) -> Network:
    """LeNet 6-16-120-84, the PLGA code's network for CIFAR-10."""
    convs = [*_conv_pool(_channels(shape), 6), *_conv_pool(6, 16)]
    return _on_convs(convs, shape, classes, 120, 84)


def feddwa_cnn(shape: Shape, classes: int, dropout: float = 0.5) -> Network:
    """FedDWA on CIFAR and CINIC: conv-ReLU-pool-BN twice (32, 64), FC 512 with dropout."""
    convs: list[nn.Module] = []
    for c_in, c_out in ((_channels(shape), 32), (32, 64)):
        convs += [*_conv_pool(c_in, c_out, kernel=3), nn.BatchNorm2d(c_out)]
    flat = _flat_size(convs, shape)
    body = nn.Sequential(*convs, nn.Flatten(), nn.Linear(flat, 512), nn.Dropout(dropout), nn.ReLU())
    return Network(body, 512, classes)


def feddwa_emnist(shape: Shape, classes: int) -> Network:
    """FedDWA on EMNIST: two 5x5 convolutions (32, 64), FC 2048."""
    convs = [*_conv_pool(_channels(shape), 32), *_conv_pool(32, 64)]
    return _on_convs(convs, shape, classes, 2048)


def fedas_cnn(shape: Shape, classes: int, hidden: int = 512) -> Network:
    """FedAS (and PFLlib): two 5x5 convolutions (32, 64), FC 512."""
    convs = [*_conv_pool(_channels(shape), 32), *_conv_pool(32, 64)]
    return _on_convs(convs, shape, classes, hidden)


def resnet8(shape: Shape, classes: int, width: int = 16) -> Network:
    """FedDWA on Tiny-ImageNet: three stages of one basic block, batch norm, Kaiming init."""
    body = nn.Sequential(
        nn.Conv2d(_channels(shape), width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        BasicBlock(width, width, stride=1),
        BasicBlock(width, 2 * width, stride=2),
        BasicBlock(2 * width, 4 * width, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    for module in body.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return Network(body, 4 * width, classes)


def pflego_mlp(shape: Shape, classes: int) -> Network:
    """PFLEGO on MNIST, Fashion-MNIST and EMNIST: one hidden layer of 200."""
    return _glorot(mlp(shape, classes, hidden=200))


def pflego_cifar(shape: Shape, classes: int) -> Network:
    """PFLEGO on CIFAR-10: two 5x5 convolutions (64), overlapping pools, FC 384, FC 192."""
    convs: list[nn.Module] = []
    for c_in in (_channels(shape), 64):
        convs += [nn.Conv2d(c_in, 64, 5, padding=2), nn.ReLU(), SamePool()]
    return _glorot(_on_convs(convs, shape, classes, 384, 192))


def pflego_omniglot(shape: Shape, classes: int) -> Network:
    """PFLEGO on Omniglot: four 3x3 convolutions (64), each pooled by 2; no batch norm."""
    convs: list[nn.Module] = []
    for c_in in (_channels(shape), 64, 64, 64):
        convs += _conv_pool(c_in, 64, kernel=3, padding=1)
    return _glorot(_on_convs(convs, shape, classes))


def simple_cnn(shape: Shape, classes: int) -> Network:
    """The `simple_cnn` of pfl-research's benchmarks: two 3x3 convolutions (32, 64), one pool, FC
    128, dropout .25 and .5, Glorot-uniform weights."""
    convs: list[nn.Module] = [
        *(nn.Conv2d(_channels(shape), 32, 3), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
    ]
    flat = [nn.Dropout(0.25), nn.Flatten(), nn.Linear(_flat_size(convs, shape), 128), nn.ReLU()]
    model = Network(nn.Sequential(*convs, *flat, nn.Dropout(0.5)), 128, classes)
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(module.weight)
    return model


def cnn_small(shape: Shape, classes: int, hidden: int = 64) -> Network:
    """For small images such as the 8x8 digits: two padded 3x3 convolutions (16, 32)."""
    convs = [
        *_conv_pool(_channels(shape), 16, kernel=3, padding=1),
        *_conv_pool(16, 32, kernel=3, padding=1),
    ]
    return _on_convs(convs, shape, classes, hidden)


def mlp(shape: Shape, classes: int, hidden: int = 64, layers: int = 1) -> Network:
    """Fully connected, `layers` hidden layers of `hidden` units; images or vectors."""
    return _on_convs([], shape, classes, *[hidden] * layers)


def linear(shape: Shape, classes: int) -> Network:
    """Softmax regression: the body only flattens."""
    return _on_convs([], shape, classes)


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


REGISTRY: dict[str, Callable[..., Network]] = {
    f.__name__: f
    for f in (
        spfl_cnn,
        lenet,
        feddwa_cnn,
        feddwa_emnist,
        resnet8,
        pflego_mlp,
        pflego_cifar,
        pflego_omniglot,
        fedas_cnn,
        simple_cnn,
        cnn_small,
        mlp,
        linear,
    )
}


def build(section: dict[str, Any], shape: Shape, classes: int, seed: int = 0) -> nn.Module:
    """Model of a config section: {"name": "mlp", "hidden": 32}, or {"name": "module:Class"}.

    The same seed gives the same weights, whatever was drawn before.
    """
    options = dict(section)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise UserError(f"model needs a name, one of: {', '.join(sorted(REGISTRY))}")
    make = _imported(name) if ":" in name else REGISTRY.get(name)
    if make is None:
        raise did_you_mean(name, REGISTRY, "model")
    shape = tuple(int(n) for n in shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _make(name, make, shape, classes, options)
        _check_output(name, model, shape, classes)
    return model


def default_model(shape: Shape) -> str:
    """Name of a sensible model for samples of this shape."""
    if len(shape) != 3:
        return "mlp"
    side = min(shape[1:])
    return "cnn_small" if side < 16 else "fedas_cnn" if side < 64 else "resnet8"


def list_models() -> list[dict[str, Any]]:
    """Name, what it is, and its options with their defaults."""
    return [
        {"name": name, "doc": inspect.getdoc(make) or "", "options": _options(make)}
        for name, make in REGISTRY.items()
    ]


def _options(make: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(make).parameters.values()
    return {p.name: p.default for p in parameters if p.name not in ("shape", "classes")}


def _make(
    name: str, make: Callable[..., Any], shape: Shape, classes: int, options: dict[str, Any]
) -> nn.Module:
    if make is REGISTRY.get(name):
        known = _options(make)
        for key, value in options.items():
            if key not in known:
                raise did_you_mean(key, known, f"option of model '{name}'")
            options[key] = _checked(name, key, value, type(known[key]))
        return make(shape, classes, **options)
    try:
        takes = inspect.signature(make).parameters
        given = {"shape": shape, "classes": classes}
        model = make(**{k: v for k, v in given.items() if k in takes}, **options)
    except Exception as error:
        raise UserError(f"model '{name}' could not be built: {_one_line(error)}") from error
    if not isinstance(model, nn.Module):
        raise UserError(f"model '{name}' is a {type(model).__name__}, not a torch nn.Module")
    return model


def _checked(name: str, key: str, value: Any, kind: type) -> Any:
    if kind is int and type(value) is int and value >= 1:
        return value
    if kind is float and type(value) in (int, float) and 0 <= value < 1:
        return float(value)
    wanted = "a whole number of at least 1" if kind is int else "a number in [0, 1)"
    raise UserError(f"option '{key}' of model '{name}' must be {wanted}, got {value!r}")


def _imported(path: str) -> Callable[..., Any]:
    module, _, attribute = path.partition(":")
    try:
        made: Callable[..., Any] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"cannot import model '{path}': {_one_line(error)}; write module:Class and put the"
            " module on PYTHONPATH"
        ) from None
    return made


def _check_output(name: str, model: nn.Module, shape: Shape, classes: int) -> None:
    was_training = model.training
    model.eval()  # so that batch norm neither needs a batch nor moves its statistics
    try:
        with torch.no_grad():
            out = model(torch.zeros(2, *shape))
    except Exception as error:
        raise UserError(
            f"model '{name}' does not take samples of shape {list(shape)}: {_one_line(error)}"
        ) from error
    model.train(was_training)
    got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
    if got != [2, classes]:
        raise UserError(
            f"model '{name}' gives {got} for 2 samples but the data has {classes} classes:"
            f" it must give [2, {classes}]"
        )


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"


def _channels(shape: Shape) -> int:
    if len(shape) != 3:
        raise UserError(
            f"this model needs images [C, H, W] but samples have shape {list(shape)};"
            " use model 'mlp' or 'linear'"
        )
    return shape[0]


def _conv_pool(c_in: int, c_out: int, kernel: int = 5, padding: int = 0) -> list[nn.Module]:
    return [nn.Conv2d(c_in, c_out, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]


def _flat_size(convs: list[nn.Module], shape: Shape) -> int:
    """Features after the convolutions (batch norm keeps the shape)."""
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


def _on_convs(convs: list[nn.Module], shape: Shape, classes: int, *hidden: int) -> Network:
    features = _flat_size(convs, shape)
    layers: list[nn.Module] = [*convs, nn.Flatten()]
    for width in hidden:
        layers += [nn.Linear(features, width), nn.ReLU()]
        features = width
    return Network(nn.Sequential(*layers), features, classes)


def _glorot(model: Network) -> Network:
    """PFLEGO's starting point: Glorot-normal weights, small normal biases."""
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_normal_(module.weight)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.01)
    return model
