"""split.json: the clients' classes, recorded once when a simulated run begins."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from idiolect import Federation, report
from idiolect.errors import UserError
from idiolect.report import log_plots, page
from idiolect.runs import class_counts
from idiolect.runs.from_python import simulate

LABELS = ([0, 0, 0, 2], [1, 1, 2, 2], [0, 1, 2, 2])


def federation(labels: tuple[list[int], ...] = LABELS) -> Federation:
    clients = []
    for y in labels:
        x = np.random.default_rng(0).normal(size=(len(y), 4)).astype(np.float32)
        clients.append({"x_train": x, "y_train": np.array(y), "x_test": x, "y_test": np.array(y)})
    return Federation.from_arrays(clients)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    simulate("fedavg", federation(), torch.nn.Linear(4, 3), out=out, rounds=1, device="cpu")
    return out


def test_a_run_records_its_clients_classes_and_the_report_draws_them(run: Path) -> None:
    about = class_counts.read(run)
    assert about is not None and about["counts"] == [[3, 0, 1], [0, 2, 2], [1, 1, 2]]
    found = report.load(run)
    figure, told = log_plots.split(found) or ({}, "")
    assert figure["data"][0]["z"] == [[3, 0, 1], [0, 2, 2], [1, 1, 2]]
    assert told == "3 clients, 3 classes"
    html, figures = page.views([found])
    assert "<h2>The split</h2>" in html and figure in figures


def test_huge_federations_and_other_tasks_have_no_counts(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_counts, "MOST_CELLS", 8)
    class_counts.write(tmp_path, SimpleNamespace(federation=federation()))
    about = class_counts.read(tmp_path)
    assert about == {"clients": 3, "classes": 3, "counts": None}
    found = report.load(run)
    found.__dict__["class_counts"] = about
    assert "too many, so they were not recorded" in page.views([found])[0]
    (tmp_path / "split.json").unlink()
    class_counts.write(tmp_path, SimpleNamespace())  # real sites keep their data
    task = SimpleNamespace(has_classes=False)
    class_counts.write(tmp_path, SimpleNamespace(federation=SimpleNamespace(task=task)))
    assert class_counts.read(tmp_path) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"counts": [[1, 2, 3]]},
        {"counts": [[1, 2], [1, 2], [1, 2]]},
        {"counts": [[1, 2, -3]] * 3},
        {"counts": [[1, 2, "<b>"]] * 3},
        {"counts": 3},
        {"classes": 1.5},
        {"class_names": "<b>"},
    ],
)
def test_a_damaged_file_is_told(wrong: dict[str, object], run: Path, tmp_path: Path) -> None:
    about = json.loads((run / "split.json").read_text())
    (tmp_path / "split.json").write_text(json.dumps({**about, **wrong}))
    with pytest.raises(UserError, match=r"split\.json is damaged"):
        class_counts.read(tmp_path)
