"""Loop and stacked engine agree for every task and metric."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

from idiolect import simulate
from idiolect.core.task import METRICS, LearningTask
from idiolect.data import Federation
from idiolect.models import build

SIZES = (9, 14, 5)
PAIRS = [(task, metric) for task, known in METRICS.items() for metric in known]


def federation(task: LearningTask) -> Federation:
    draw = np.random.default_rng(3)

    def part(n: int) -> tuple[np.ndarray, np.ndarray]:
        x = draw.normal(size=(n, 4)).astype(np.float32)
        if task.has_classes:
            return x, draw.integers(0, 3, n)
        y = x[:, :2] * 2 + draw.normal(size=(n, 2)) * 0.1
        return x, (y > 0).astype(float) if task.name == "multilabel" else y

    clients = []
    for n in SIZES:
        (a, b), (c, d) = part(n), part(n + 3)
        clients.append({"x_train": a, "y_train": b, "x_test": c, "y_test": d})
    return Federation.from_arrays(clients, classes=3 if task.has_classes else None, task=task)


@pytest.mark.parametrize("method", ["fedavg", "local", "fedper", "apfl", "scaffold"])
@pytest.mark.parametrize(("name", "metric"), PAIRS)
def test_loop_equals_stacked(name: str, metric: str, method: str) -> None:
    fed = federation(LearningTask(name, metric))
    model = build({"name": "mlp", "hidden": 5}, fed.shape, fed.classes)
    how = {"rounds": 2, "dtype": "float64", "device": "cpu"}
    section = {"name": method, "lr": 0.05, "batch_size": 4}
    loop, stacked = (simulate(section, fed, model, engine=e, **how) for e in ("loop", "stacked"))
    assert np.allclose(loop.accuracy(), stacked.accuracy(), atol=1e-9)
    for a, b in zip(loop.last.clients, stacked.last.clients, strict=True):
        assert all(torch.allclose(a[n], b[n], atol=1e-9) for n in a)


@pytest.mark.parametrize(("name", "metric"), PAIRS)
def test_metrics_are_those_of_scikit_learn(name: str, metric: str) -> None:
    draw = torch.Generator().manual_seed(0)
    out = torch.randn(50, 3, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 3, (50,), generator=draw)
    if name != "classification":
        y = torch.randn(50, 3, generator=draw).double()
    if name == "multilabel":
        y = (y > 0).double()
    said = {"classification": out.argmax(1), "multilabel": (out > 0).double()}.get(name, out)
    found = METRICS[name][metric]
    sums = found.statistics(out, y).sum(0, keepdim=True).double().numpy()
    value = float(found.value(sums, np.array([50.0]))[0])
    truth = {
        "accuracy": lambda: sklearn_metrics.accuracy_score(y, said),
        "balanced_accuracy": lambda: sklearn_metrics.balanced_accuracy_score(y, said),
        "macro_f1": lambda: sklearn_metrics.f1_score(y, said, average="macro"),
        "label_accuracy": lambda: float((said == y).double().mean()),
        "rmse": lambda: sklearn_metrics.mean_squared_error(y, said) ** 0.5,
        "mae": lambda: sklearn_metrics.mean_absolute_error(y, said),
        "r2": lambda: sklearn_metrics.r2_score(y, said),
    }[metric]()
    assert value == pytest.approx(truth, abs=1e-9)
