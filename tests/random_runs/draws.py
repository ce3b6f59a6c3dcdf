"""Runs drawn by lot: a method with any settings, on clients of any size, for any task, whoever
takes part. A run is its number: the same draws every time."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor, nn

from idiolect import methods, models
from idiolect.core import augmentation, fields
from idiolect.core.method import Method, Net
from idiolect.core.task import IGNORED, LearningTask
from idiolect.core.tree import Tree
from idiolect.data import Federation
from idiolect.simulation.measures import Measures
from idiolect.simulation.schedule import Clock, Participation, Stragglers

METHODS = sorted(methods.REGISTRY)
TASKS = ("classification", "regression", "multilabel", "next-token", "sequence")
SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 23)
CLASSES, WIDTH, TOKENS, STEPS = 4, 6, 6, 5
# Numbers that keep a few rounds of training tame, whatever they are combined with.
NUMBERS: dict[str, tuple[float, ...]] = {
    "lr": (0.02, 0.1), "weight_decay": (0.0, 0.01), "momentum": (0.0, 0.5),
    "clip": (0.0, 0.0, 0.3), "lr_decay": (1.0, 0.7), "epochs": (1, 2), "steps": (0, 0, 0, 3),
    "lr_every": (1, 2), "lr_rounds": (0, 2), "lr_warmup": (0, 0, 2), "tau": (1, 3),
    "gamma": (1, 2), "growth_rounds": (0, 2), "head_epochs": (1, 2), "fine_tune_epochs": (0, 1),
    "guidance_epochs": (1, 2), "inner_steps": (1, 2), "update_steps": (0, 1), "adapt_steps": (0, 2),
    "ala_epochs": (1, 4), "window": (1, 2), "first_split": (0, 1), "smallest": (2, 3),
    "eps1": (0.4, 10.0), "eps2": (0.0, 1.6), "alpha_steps": (0, 2), "alpha_self": (0.0, 1.0),
    "layers": (1, 2), "neighbours": (0, 2), "models": (0, 2), "hidden": (3,), "top_k": (1, 3),
    "personal_epochs": (0, 1), "personal_lr": (0.0, 0.05), "ft_steps": (0, 2), "ft_epochs": (0, 1),
    "align_epochs": (1, 2), "layer_index": (0, 2), "beta": (0.1, 0.5), "alpha": (0.1, 0.6),
    "rho": (0.001, 0.01), "update_lr": (0.1,), "delta": (1e-3,), "hinge_slope": (10.0,),
    "mixing": (0.8, 1.0), "exponent": (0.5,), "hinge_from": (0.0, 1.0), "server_lr": (1.0, 0.5),
    "sigma": (1.0, 5.0), "lam": (0.0, 0.1, 1.0), "eta": (0.0, 1.0),
    "personal_share": (0.0, 0.4, 1.0),
}  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A run, and a short description of it."""

    number: int
    method: Method
    federation: Federation
    model: nn.Module
    network: str
    options: dict[str, Any]
    told: str


def drawn(number: int, names: Sequence[str] = METHODS) -> Drawn:
    """The run of this number, of one of these methods."""
    lot = np.random.default_rng([number, 77])
    name = str(lot.choice(list(names)))
    kind = methods.REGISTRY[name]
    task = str(lot.choice(TASKS)) if lot.random() < 0.4 else "classification"
    if kind.needs_classes:
        task = "classification"
    federation = _federation(lot, task)
    method = _method(lot, name, federation)
    model, net = _model(lot, federation, method)
    options = _options(lot, method, federation)
    more = _more(lot, method, federation, model)
    sizes = [len(rows) for rows in federation.train]
    changed = {
        f.name: getattr(method, f.name)
        for f in dataclasses.fields(method)
        if getattr(method, f.name) != f.default
    }
    told = f"{number}: {name} {changed} {task} {net} sizes={sizes} unseen={federation.unseen}"
    told = f"{told} {options} {list(more)}"
    return Drawn(number, method, federation, model, net, options | more, told)


def _method(lot: Generator, name: str, federation: Federation) -> Method:
    """With some settings changed; again until they go together."""
    kind = methods.REGISTRY[name]
    hints = fields.hints(kind)
    while True:
        section: dict[str, Any] = {"name": name}
        for known in dataclasses.fields(kind):
            often = known.name in ("batch_size", "lr", "optimizer", "momentum", "tau", "epochs")
            if known.name in ("tau", "gamma", "epochs") or lot.random() < (0.6 if often else 0.3):
                section[known.name] = _value(lot, known, hints[known.name])
        try:
            method = methods.build(section)
        except Exception:
            continue
        if not (method.uses_classes and not federation.task.has_classes):
            return method


def _value(lot: Generator, known: dataclasses.Field[Any], hint: Any) -> Any:
    if known.name in NUMBERS:
        value = NUMBERS[known.name][int(lot.integers(len(NUMBERS[known.name])))]
        return int(value) if hint is int else value
    if known.name in ("batch_size", "ft_batch_size", "align_batch_size"):
        return [2, 4, 8, "full"][int(lot.integers(4))]
    if known.name == "personal_layers":
        return ["head", "norm", "none", "all"][int(lot.integers(2))]
    if known.name == "layer_weights":
        return known.default
    kinds = [one for one in fields.members(hint) if typing.get_origin(one) is Literal]
    if kinds:
        words = typing.get_args(kinds[0])
        return words[int(lot.integers(len(words)))]
    if hint is bool:
        return bool(lot.random() < 0.5)
    bounds = known.metadata.get("bounds", {})
    least = bounds.get("min", bounds.get("above", 0.0))
    most = bounds.get("max", bounds.get("below", 1.0))
    value = least + (most - least) * float(lot.choice([0.1, 0.5, 0.9]))
    return max(int(value), int(known.default)) if hint is int else value


def _federation(lot: Generator, task: str) -> Federation:
    kind = LearningTask(task)
    n = int(lot.integers(2, 7))
    shape = (WIDTH,) if kind.per_step or lot.random() < 0.7 else (1, 6, 6)
    means = lot.normal(size=(CLASSES, *shape))

    def part(size: int, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if kind.per_step:
            x, y = lot.integers(1, TOKENS, (2, size, STEPS))
            y[: size // 2, 3:] = IGNORED
            return np.where(y == IGNORED, 0, x), y
        label = lot.choice(classes, size)
        x = (means[label] + lot.normal(size=(size, *shape))).astype(np.float32)
        if kind.has_classes:
            return x, label
        y = x.reshape(size, -1)[:, :3] + 0.1 * lot.normal(size=(size, 3))
        return x, (y > 0).astype(float) if task == "multilabel" else y

    clients = []
    for _ in range(n):
        own = lot.choice(CLASSES, int(lot.integers(1, CLASSES + 1)), replace=False)
        (x, y), (x_test, y_test) = part(int(lot.choice(SIZES)), own), part(5, own)
        one = {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}
        clients.append(one)
    if lot.random() < 0.3:
        for one in clients:
            one["x_val"], one["y_val"] = one["x_test"][:2], one["y_test"][:2]
    classes = CLASSES if kind.has_classes else TOKENS if kind.per_step else None
    unseen = [int(lot.integers(n))] if lot.random() < 0.15 else []
    return Federation.from_arrays(clients, classes=classes, task=kind, unseen=unseen)


class Smooth(nn.Module):
    """No corners, where rounding may decide which way a gradient points."""

    def __init__(self, inputs: int, outputs: int, norm: str):
        super().__init__()
        norms: dict[str, list[nn.Module]] = {
            "batch": [nn.BatchNorm1d(5)], "layer": [nn.LayerNorm(5)], "no": [],
        }  # fmt: skip
        first = nn.Linear(inputs, 5, bias=norm != "batch")
        self.body = nn.Sequential(nn.Flatten(), first, *norms[norm], nn.Tanh())
        self.head = nn.Linear(5, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


class SmoothImages(Smooth):
    def __init__(self, inputs: int, outputs: int, norm: str):
        super().__init__(inputs, outputs, "no")
        norms: dict[str, list[nn.Module]] = {
            "batch": [nn.BatchNorm2d(3)], "layer": [nn.GroupNorm(1, 3)], "no": [],
        }  # fmt: skip
        images = [nn.Conv2d(1, 3, 3), *norms[norm], nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()]
        self.body = nn.Sequential(*images, nn.Linear(12, 5), nn.Tanh())


def _model(lot: Generator, federation: Federation, method: Method) -> tuple[nn.Module, str]:
    """A network that suits the task, in a part of the runs with adapters; and what it is."""
    if federation.task.per_step:
        section = {"name": "gru", "hidden": 5, "width": 3}
        net = models.build(section, federation.shape, federation.classes, form=federation.form)
        return net, "gru"
    norm = str(lot.choice(["no", "layer", "batch"]))
    if norm == "batch" and _few_in_a_batch(federation, method):
        norm = "layer"
    inputs = int(np.prod(federation.shape))
    kind = SmoothImages if len(federation.shape) == 3 and lot.random() < 0.7 else Smooth
    with torch.random.fork_rng():
        torch.manual_seed(int(lot.integers(100)))
        net = kind(inputs, federation.classes, norm)
        spec = str(lot.choice(["lora:2,head", "bias,head", "norm,head"]))
        if lot.random() < 0.15:
            return models.adapted(net, spec), f"{kind.__name__}/{norm}/{spec}"
    return net, f"{kind.__name__}/{norm}"


def _few_in_a_batch(federation: Federation, method: Method) -> bool:
    """Through a BatchNorm of a few samples rounding grows beyond what tells a difference; of a
    single one there is none, and methods may set samples apart."""
    sizes = [len(rows) for rows in federation.train]
    batch = getattr(method, "batch_size", "full")
    return min(sizes) < 7 or (batch != "full" and batch < 4)


def _more(
    lot: Generator, method: Method, federation: Federation, model: nn.Module
) -> dict[str, Any]:
    """What few runs have: a loss of one's own, changed batches, measures, own starting points."""
    options: dict[str, Any] = {}
    tokens = federation.task.per_step
    loss = smoothed if lot.random() < 0.15 and not method.has_fixed_loss else None
    change = augmentation.loaded("noise:0.1") if lot.random() < 0.15 and not tokens else None
    if loss or change:
        options["learn"] = (loss, change)
    if lot.random() < 0.15:
        words = ("train", "fisher", "flops", "gradients")
        options["measure"] = Measures.of(str(lot.choice(words)))
    if lot.random() < 0.15:
        state = {n: v for n, v in model.state_dict().items() if v.is_floating_point()}
        options["clients_init"] = {0: {n: 1.1 * v for n, v in state.items()}}
    return options


def smoothed(net: Net, params: Tree, x: Tensor, y: Tensor) -> Tensor:
    """The task's loss, and outputs that are not too large."""
    out = net(params, x)
    return net.loss_of(out, y) + 0.01 * out.square().flatten(1).mean(1)


def _options(lot: Generator, method: Method, federation: Federation) -> dict[str, Any]:
    rounds, seen = int(lot.integers(2, 6)), len(federation.seen)
    options: dict[str, Any] = {
        "rounds": rounds,
        "seed": int(lot.integers(5)),
        "participation": Participation.of(str(lot.choice(["1.0", "0.6", "binomial:0.5"]))),
        "eval_every": int(lot.choice([1, 1, 2, 3])),
    }
    how = lot.random()
    if how < 0.25:
        periods = tuple(int(p) for p in lot.integers(0, 4, seen))
        cycle = str(lot.choice(["auto", "paper", *(["code"] * method.asynchronous)]))
        options["stragglers"] = Stragglers(periods=periods, cycle=cycle)  # type: ignore[arg-type]
    elif how < 0.4:
        options["clock"] = Clock(
            window=float(lot.choice([0.5, 1.0])),
            arrivals=int(lot.choice([0, 1, 2])),
            spread=float(lot.choice([0.1, 1.0])),
        )
    return options
