"""What a network's outputs mean: its loss, the metric clients are judged by, and whether more
of the metric is better. Data names its task; engines, evaluation and reports ask it here."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from idiolect.core.own_code import is_own
from idiolect.errors import UserError, did_you_mean

Statistics = Callable[[Tensor, Tensor], Tensor]  # outputs, targets -> [n, S], summed per client
Value = Callable[[np.ndarray, np.ndarray], np.ndarray]  # sums [K, S], sizes [K] -> [K]


@dataclass(frozen=True)
class Metric:
    """A number per client, made of sums over its samples, so that batches can be added up."""

    name: str
    statistics: Statistics
    value: Value
    lower: bool = False  # less is better
    share: bool = True  # between 0 and 1, shown in percent

    @property
    def sign(self) -> float:
        """Times a value: more is better."""
        return -1.0 if self.lower else 1.0


def _right(out: Tensor, y: Tensor) -> Tensor:
    return (out.argmax(-1) == y).double()[:, None]


def _confusion(out: Tensor, y: Tensor) -> Tensor:
    """Of every class: hits, samples, predictions."""
    real, said = F.one_hot(y, out.shape[-1]), F.one_hot(out.argmax(-1), out.shape[-1])
    return torch.cat([real * said, real, said], 1).double()


def _label_confusion(out: Tensor, y: Tensor) -> Tensor:
    said, real = (out > 0).double(), y.double()
    return torch.cat([real * said, real, said], 1)


def _labels_right(out: Tensor, y: Tensor) -> Tensor:
    return ((out > 0) == (y > 0.5)).double().mean(1, keepdim=True)


def _errors(out: Tensor, y: Tensor) -> Tensor:
    """Squared and absolute error, as means over the outputs."""
    out, y = out.double(), y.double()
    gap = out - y
    return torch.stack([gap.square().mean(1), gap.abs().mean(1)], 1)


def _explained(out: Tensor, y: Tensor) -> Tensor:
    """Of every output: squared error, target, its square."""
    out, y = out.double(), y.double()
    return torch.cat([(out - y).square(), y, y.square()], 1)


def mean_over_samples(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return np.asarray(sums[:, 0] / sizes)


def _thirds(sums: np.ndarray) -> list[np.ndarray]:
    return np.split(sums, 3, axis=1)


def _mean_of_known(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Mean over the classes that a client has."""
    total = np.where(known, values, 0).sum(1)
    return np.asarray(total / np.maximum(known.sum(1), 1))


def _balanced(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    hits, real, _ = _thirds(sums)
    return _mean_of_known(hits / np.maximum(real, 1), real > 0)


def _macro_f1(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    hits, real, said = _thirds(sums)
    return _mean_of_known(2 * hits / np.maximum(real + said, 1), real + said > 0)


def _r2(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Mean over outputs; a client whose targets are all alike has none."""
    wrong, total, square = _thirds(sums)
    spread = square - total**2 / sizes[:, None]
    exact = np.isclose(spread, 0, atol=1e-12 * np.maximum(square.max(), 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(exact, np.nan, 1 - wrong / spread).mean(1))


ACCURACY = Metric("accuracy", _right, mean_over_samples)
METRICS: dict[str, dict[str, Metric]] = {
    "classification": {
        "accuracy": ACCURACY,
        "balanced_accuracy": Metric("balanced_accuracy", _confusion, _balanced),
        "macro_f1": Metric("macro_f1", _confusion, _macro_f1),
    },
    "multilabel": {
        "macro_f1": Metric("macro_f1", _label_confusion, _macro_f1),
        "label_accuracy": Metric("label_accuracy", _labels_right, mean_over_samples),
    },
    "regression": {
        "rmse": Metric("rmse", _errors, lambda s, n: np.sqrt(s[:, 0] / n), True, False),
        "mae": Metric("mae", _errors, lambda s, n: s[:, 1] / n, True, False),
        "r2": Metric("r2", _explained, _r2, share=False),
    },
}


OWN_METRICS: dict[str, Metric] = {}  # functions of the user's own, admitted, by whole name
REMEMBERED: dict[str, Metric] = {}  # metrics of runs that were read, whose code is not here


def metric_named(name: str) -> Metric:
    """The metric of a column such as `rmse_before`."""
    own = {one.name: one for one in OWN_METRICS.values()}
    for known in (*METRICS.values(), own, REMEMBERED):
        if name in known:
            return known[name]
    raise did_you_mean(name, [n for known in METRICS.values() for n in known], "metric")


@dataclass(frozen=True)
class LearningTask:
    """What is learnt: `classification`, `multilabel` or `regression`, and the metric."""

    name: str = "classification"
    metric_name: str = ""  # not given: the first of the task

    def __post_init__(self) -> None:
        if self.name not in METRICS:
            raise did_you_mean(self.name, METRICS, "task")
        known = METRICS[self.name]
        if self.metric_name and self.metric_name not in known and not is_own(self.metric_name):
            raise UserError(
                f"metric '{self.metric_name}' is not for {self.name}; use {', '.join(known)}"
            )

    @property
    def metric(self) -> Metric:
        if is_own(self.metric_name):
            return OWN_METRICS[self.metric_name]
        known = METRICS[self.name]
        return known[self.metric_name] if self.metric_name else next(iter(known.values()))

    @property
    def has_classes(self) -> bool:
        """Whether a sample has one class, which some methods and splits need."""
        return self.name == "classification"

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        """One value per sample."""
        if self.name == "regression":
            return (out - y.to(out.dtype)).square().mean(1)
        if self.name == "multilabel":
            y = y.to(out.dtype)
            # The formula of F.binary_cross_entropy_with_logits, in operations that `vmap` knows.
            return (out.clamp_min(0) - out * y + torch.log1p(torch.exp(-out.abs()))).mean(1)
        # `F.cross_entropy` in two operations: under `vmap` its own is a long way of Python.
        return -F.log_softmax(out, 1).gather(1, y[:, None]).squeeze(1)

    def test_loss(self, out: Tensor, y: Tensor, reduction: str = "none") -> Tensor:
        """The same without clients side by side, one value per sample or their sum."""
        if self.has_classes:
            return F.cross_entropy(out, y, reduction=reduction)
        each = self.loss(out, y)
        return each if reduction == "none" else each.sum()


CLASSIFICATION = LearningTask()
