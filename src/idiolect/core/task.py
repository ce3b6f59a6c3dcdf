"""What a network's outputs mean: its loss, the metric clients are judged by, and whether more
of the metric is better. Data names its task; engines, evaluation and reports ask it here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from idiolect.core import plugins
from idiolect.core.own_code import is_own
from idiolect.errors import UserError, did_you_mean

Statistics = Callable[[Tensor, Tensor], Tensor]  # outputs, targets -> [n, S], summed per client
Value = Callable[[np.ndarray, np.ndarray], np.ndarray]  # sums [K, S], sizes [K] -> [K]
Whole = Callable[[Tensor, Tensor], float]  # all outputs and targets of ONE client
IGNORED = -100  # the target of a step that does not count, as padding; PyTorch's number for it


@dataclass(frozen=True)
class Metric:
    """A number per client, made of sums over its samples, so that batches can be added up; `whole`
    where it needs all of a client's samples at once."""

    name: str
    statistics: Statistics
    value: Value
    lower: bool = False  # less is better
    share: bool = True  # between 0 and 1, shown in percent
    whole: Whole | None = None

    @property
    def sign(self) -> float:
        """Times a value: more is better."""
        return -1.0 if self.lower else 1.0

    def of_client(self, out: Tensor, y: Tensor) -> float:
        """The number of ONE client, from all its outputs and targets."""
        if self.whole is not None:
            return self.whole(out, y)
        sums = self.statistics(out, y).double().sum(0, keepdim=True).numpy()
        return float(self.value(sums, np.array([float(len(y))]))[0])

    def told(self, value: float, sign: bool = False) -> str:
        """A value in words: in percent where it is a share."""
        if self.share:
            return f"{100 * value:{'+' if sign else ''}.1f} %"
        return f"{value:{'+' if sign else ''}.4g}"


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


def _step_losses(out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy `[n, T]` of outputs `[n, T, C]`, 0 where a step is ignored; and which count."""
    real = y != IGNORED
    nll = -F.log_softmax(out, -1).gather(-1, y.clamp_min(0)[..., None]).squeeze(-1)
    return nll * real, real


def _surprise(out: Tensor, y: Tensor) -> Tensor:
    """Of every sample: cross-entropy and number of its steps."""
    loss, real = _step_losses(out.double(), y)
    return torch.stack([loss.sum(1), real.sum(1).double()], 1)


def _steps_right(out: Tensor, y: Tensor) -> Tensor:
    real = y != IGNORED
    return torch.stack([((out.argmax(-1) == y) & real).sum(1), real.sum(1)], 1).double()


def _per_step(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """NaN where a client has no step that counts."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(sums[:, 0] / sums[:, 1])


def _perplexity(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(_per_step(sums, sizes)))


def _auc(scores: Tensor, real: Tensor) -> float:
    """Area under the ROC curve, the mean over the columns that have both kinds of samples."""
    from sklearn.metrics import roc_auc_score  # it takes a second to import

    both = [c for c in range(real.shape[1]) if 0 < int(real[:, c].sum()) < len(real)]
    if not both or not bool(torch.isfinite(scores).all()):
        return float("nan")
    return float(np.mean([roc_auc_score(real[:, c].numpy(), scores[:, c].numpy()) for c in both]))


def _class_auc(out: Tensor, y: Tensor) -> float:
    """Every class against the rest."""
    return _auc(out.double().softmax(1), F.one_hot(y, out.shape[1]))


def _label_auc(out: Tensor, y: Tensor) -> float:
    return _auc(out.double(), y > 0.5)


def _nothing(out: Tensor, y: Tensor) -> Tensor:
    return out.new_zeros(len(out), 1)


def as_it_is(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return np.asarray(values[:, 0])


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
PERPLEXITY = Metric("perplexity", _surprise, _perplexity, lower=True, share=False)
TOKEN_ACCURACY = Metric("token_accuracy", _steps_right, _per_step)
METRICS: dict[str, dict[str, Metric]] = {
    "classification": {
        "accuracy": ACCURACY,
        "balanced_accuracy": Metric("balanced_accuracy", _confusion, _balanced),
        "macro_f1": Metric("macro_f1", _confusion, _macro_f1),
        "auc": Metric("auc", _nothing, as_it_is, whole=_class_auc),
    },
    "multilabel": {
        "macro_f1": Metric("macro_f1", _label_confusion, _macro_f1),
        "label_accuracy": Metric("label_accuracy", _labels_right, mean_over_samples),
        "auc": Metric("auc", _nothing, as_it_is, whole=_label_auc),
    },
    "regression": {
        "rmse": Metric("rmse", _errors, lambda s, n: np.sqrt(s[:, 0] / n), True, False),
        "mae": Metric("mae", _errors, lambda s, n: s[:, 1] / n, True, False),
        "r2": Metric("r2", _explained, _r2, share=False),
    },
    "next-token": {"perplexity": PERPLEXITY, "token_accuracy": TOKEN_ACCURACY},
    "sequence": {"token_accuracy": TOKEN_ACCURACY, "perplexity": PERPLEXITY},
}


METRIC_GROUP = "idiolect.metrics"  # entry points of packages that bring functions
OWN_METRICS: dict[str, Metric] = {}  # functions of the user's own, admitted, by whole name
INSTALLED: dict[str, Metric] = {}  # those of packages that were asked for, by name
REMEMBERED: dict[str, Metric] = {}  # metrics of runs that were read, whose code is not here


def metric_of(function: Any, called: str) -> Metric:
    """The metric of a function of outputs and targets that gives a value per sample."""
    if isinstance(function, type) or not callable(function):
        raise UserError(f"metric '{called}' is no function of outputs and targets")
    if is_ours(called):
        raise UserError(f"metric '{called}' has the name of one that Idiolect has; rename it")
    if is_column(called):
        raise UserError(f"metric '{called}' has the name of another column of tables; rename it")

    def per_sample(outputs: Tensor, targets: Tensor) -> Tensor:
        value = function(outputs, targets)
        if not isinstance(value, Tensor) or value.shape != (len(outputs),):
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise UserError(
                f"metric '{called}' must give a tensor with one value per sample, got {got}"
            )
        return value.to(torch.float64)[:, None]

    lower = bool(getattr(function, "lower_is_better", False))
    return Metric(called, per_sample, mean_over_samples, lower, False)


def is_column(name: str) -> bool:
    """Whether clients' tables have another column under the name of a metric."""
    return name == "loss" or name.startswith(("val_", "train_"))


def is_ours(name: str) -> bool:
    """Whether a metric comes with Idiolect, for whatever task."""
    return any(name in known for known in METRICS.values())


def installed_metric(name: str) -> Metric:
    """The metric that a package brings under this name."""
    if name not in INSTALLED:
        point = plugins.found(METRIC_GROUP)[name]
        function = plugins.load(point, "metric")
        try:
            INSTALLED[name] = metric_of(function, name)
        except UserError as error:
            raise plugins.broken(point, "metric", str(error)) from None
    return INSTALLED[name]


def metric_named(name: str) -> Metric:
    """The metric of a column such as `rmse_before`."""
    own = {one.name: one for one in OWN_METRICS.values()}
    for known in (*METRICS.values(), own, INSTALLED, REMEMBERED):
        if name in known:
            return known[name]
    raise did_you_mean(name, [n for known in METRICS.values() for n in known], "metric")


@dataclass(frozen=True)
class LearningTask:
    """What is learnt: `classification`, `multilabel`, `regression`, `next-token` or `sequence` (a
    class for every step of a sample), and the metric."""

    name: str = "classification"
    metric_name: str = ""  # not given: the first of the task

    def __post_init__(self) -> None:
        if self.name not in METRICS:
            raise did_you_mean(self.name, METRICS, "task")
        added = [one for one in plugins.found(METRIC_GROUP) if not is_ours(one)]
        names = ["", *METRICS[self.name], *added]
        if self.metric_name not in names and not is_own(self.metric_name):
            raise UserError(
                f"metric '{self.metric_name}' is not for {self.name}; use {', '.join(names[1:])},"
                " or file.py:function"
            )

    @property
    def metric(self) -> Metric:
        if is_own(self.metric_name):
            return OWN_METRICS[self.metric_name]
        known = METRICS[self.name]
        if self.metric_name and self.metric_name not in known:
            return installed_metric(self.metric_name)
        return known[self.metric_name] if self.metric_name else next(iter(known.values()))

    @property
    def has_classes(self) -> bool:
        """Whether a sample has one class, which some methods and splits need."""
        return self.name == "classification"

    @property
    def per_step(self) -> bool:
        """Whether every step of a sample has a class: targets `[n, T]`, outputs `[n, T, C]`."""
        return self.name in ("next-token", "sequence")

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        """One value per sample."""
        if self.name == "regression":
            return (out - y.to(out.dtype)).square().mean(1)
        if self.per_step:
            each, real = _step_losses(out, y)
            return each.sum(1) / real.sum(1).clamp_min(1)
        if self.name == "multilabel":
            y = y.to(out.dtype)
            # The formula of F.binary_cross_entropy_with_logits, in operations that `vmap` knows.
            return (out.clamp_min(0) - out * y + torch.log1p(torch.exp(-out.abs()))).mean(1)
        # `F.cross_entropy` in two operations: under `vmap` its own is a long way of Python.
        return -F.log_softmax(out, 1).gather(1, y[:, None]).squeeze(1)

    def answers(self, out: Tensor) -> Tensor:
        """What outputs say: shares of classes, of every label, quantities; a class per step."""
        if self.per_step:
            return out.argmax(-1)
        if self.name == "regression":
            return out
        return out.sigmoid() if self.name == "multilabel" else out.softmax(1)

    def test_loss(self, out: Tensor, y: Tensor, reduction: str = "none") -> Tensor:
        """The same without clients side by side, one value per sample or their sum."""
        if self.has_classes:
            return F.cross_entropy(out, y, reduction=reduction)
        each = self.loss(out, y)
        return each if reduction == "none" else each.sum()


CLASSIFICATION = LearningTask()
