"""Loop and stacked engine agree for every task and metric."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics
from torch import nn

from idiolect import simulate
from idiolect.core.task import IGNORED, METRICS, LearningTask
from idiolect.data import Federation
from idiolect.errors import UserError
from idiolect.methods import REGISTRY
from idiolect.models import build

MLP = {"name": "mlp", "hidden": 5}
NEED_CLASSES = {"fedas", "fedproto", "fedpac", "pflego", "fedrod", "cd2_pfed", "fedrecon"}
PFLEGO_FEDPER = {"name": "fedper", "head_init": "uniform"}
SIZES = (9, 14, 5)
PAIRS = [(task, metric) for task, known in METRICS.items() for metric in known]


def federation(task: LearningTask) -> Federation:
    draw = np.random.default_rng(3)

    def part(n: int) -> tuple[np.ndarray, np.ndarray]:
        if task.per_step:
            text = draw.integers(1, 5, (n, 7))
            y = text[:, 1:].copy()
            y[: n // 2, 3:] = IGNORED  # short sequences
            return np.where(y == IGNORED, 0, text[:, :-1]), y
        x = draw.normal(size=(n, 4)).astype(np.float32)
        if task.has_classes:
            return x, draw.integers(0, 3, n)
        y = x[:, :2] * 2 + draw.normal(size=(n, 2)) * 0.1
        return x, (y > 0).astype(float) if task.name == "multilabel" else y

    clients = []
    for n in SIZES:
        (a, b), (c, d) = part(n), part(n + 3)
        clients.append({"x_train": a, "y_train": b, "x_test": c, "y_test": d})
    classes = 3 if task.has_classes else 5 if task.per_step else None
    return Federation.from_arrays(clients, classes=classes, task=task)


def network(fed: Federation) -> nn.Module:
    name = {"name": "gru", "hidden": 5, "width": 3} if fed.task.per_step else MLP
    return build(name, fed.shape, fed.classes, form=fed.form)


@pytest.mark.parametrize("method", ["fedavg", "local", "fedper", "apfl", "scaffold"])
@pytest.mark.parametrize(("name", "metric"), PAIRS)
def test_loop_equals_stacked(name: str, metric: str, method: str) -> None:
    fed = federation(LearningTask(name, metric))
    model = network(fed)
    how = {"rounds": 2, "dtype": "float64", "device": "cpu"}
    section = {"name": method, "lr": 0.05, "batch_size": 4}
    loop, stacked = (simulate(section, fed, model, engine=e, **how) for e in ("loop", "stacked"))
    assert np.allclose(loop.accuracy(), stacked.accuracy(), atol=1e-9)
    assert np.isfinite(loop.accuracy()).all()
    for a, b in zip(loop.last.clients, stacked.last.clients, strict=True):
        assert all(torch.allclose(a[n], b[n], atol=1e-9) for n in a)


@pytest.mark.parametrize("method", sorted(REGISTRY))
def test_every_method_does_every_task_or_says_what_it_needs(method: str) -> None:
    for task in ("regression", "next-token"):
        _does_it_or_says_so(method, federation(LearningTask(task)))


def _does_it_or_says_so(method: str, fed: Federation) -> None:
    section = {"name": method}
    how = {"rounds": 1, "device": "cpu"}
    if method in NEED_CLASSES:
        with pytest.raises(UserError, match=f"{method} needs samples with one class each"):
            simulate(section, fed, network(fed), **how)
    else:
        assert np.isfinite(simulate(section, fed, network(fed), **how).accuracy()).all()


@pytest.mark.parametrize("section", [{"name": "sfl", "graph": "classes"}, PFLEGO_FEDPER])
def test_settings_that_need_classes_say_so(section: dict[str, str]) -> None:
    fed = federation(LearningTask("regression"))
    with pytest.raises(UserError, match="needs samples with one class each"):
        simulate(section, fed, network(fed), rounds=1)


@pytest.mark.parametrize(("name", "metric"), PAIRS)
def test_metrics_are_those_of_scikit_learn(name: str, metric: str) -> None:
    draw = torch.Generator().manual_seed(0)
    out = torch.randn(50, 3, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 3, (50,), generator=draw)
    if name != "classification":
        y = torch.randn(50, 3, generator=draw).double()
    if name == "multilabel":
        y = (y > 0).double()
    if name in ("next-token", "sequence"):
        out, y = out.reshape(10, 5, 3), torch.randint(0, 3, (10, 5), generator=draw)
        y[3, 2:] = IGNORED
    said = {"classification": out.argmax(1), "multilabel": (out > 0).double()}.get(name, out)
    found = METRICS[name][metric]
    sums = found.statistics(out, y).sum(0, keepdim=True).double().numpy()
    if found.whole is not None:
        sums = np.array([[found.whole(out, y)]])
    value = float(found.value(sums, np.array([50.0]))[0])
    real = y != IGNORED
    truth = {
        "accuracy": lambda: sklearn_metrics.accuracy_score(y, said),
        "balanced_accuracy": lambda: sklearn_metrics.balanced_accuracy_score(y, said),
        "macro_f1": lambda: sklearn_metrics.f1_score(y, said, average="macro"),
        "label_accuracy": lambda: float((said == y).double().mean()),
        "rmse": lambda: sklearn_metrics.mean_squared_error(y, said) ** 0.5,
        "mae": lambda: sklearn_metrics.mean_absolute_error(y, said),
        "r2": lambda: sklearn_metrics.r2_score(y, said),
        "auc": lambda: (
            sklearn_metrics.roc_auc_score(y, out.softmax(1), multi_class="ovr")
            if name == "classification"
            else sklearn_metrics.roc_auc_score(y, out)
        ),
        "token_accuracy": lambda: sklearn_metrics.accuracy_score(y[real], out[real].argmax(-1)),
        "perplexity": lambda: np.exp(
            sklearn_metrics.log_loss(y[real], out[real].softmax(-1), labels=[0, 1, 2])
        ),
    }[metric]()
    assert value == pytest.approx(truth, abs=1e-9)
