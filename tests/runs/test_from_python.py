"""`simulate(out=…)` and `compare()`: run directories from objects."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import idiolect
from idiolect import report
from idiolect.data import Federation
from idiolect.errors import UserError
from idiolect.runs.directory import read_config
from idiolect.runs.trained_run import TrainedRun


def federation(seed: int = 0) -> Federation:
    draw = np.random.default_rng(seed)
    clients = []
    for n in (12, 20, 9):
        x, y = draw.normal(size=(n, 5)).astype(np.float32), draw.integers(0, 3, n)
        clients.append({"x_train": x, "y_train": y, "x_test": x, "y_test": y})
    return Federation.from_arrays(clients, classes=3, names=["a", "b", "c"])


def test_a_run_from_python_is_a_run_directory(tmp_path: Path) -> None:
    module = nn.Linear(5, 3)
    plain = idiolect.simulate("fedper", federation(), module, rounds=3)
    written = idiolect.simulate("fedper", federation(), module, rounds=3, out=tmp_path / "r")
    np.testing.assert_array_equal(plain.accuracy(), written.accuracy())
    for ours, theirs in zip(written.last.clients, plain.last.clients, strict=True):
        for name, value in theirs.items():
            assert torch.equal(ours[name], value)
    loaded = idiolect.load_run(tmp_path / "r")
    assert loaded.finished and loaded.summary["accuracy"] == plain.summary["accuracy"]
    assert (tmp_path / "r/models/last/client_0002.safetensors").exists()
    assert report.rows([loaded])[0]["method"] == "fedper"
    for shown in (repr(loaded), repr(written)):
        assert len(shown) < 200 and "fedper" in shown and "3 rounds" in shown
    with pytest.raises(UserError, match="already holds"):
        idiolect.simulate("fedper", federation(), module, rounds=3, out=tmp_path / "r")
    with pytest.raises(UserError, match="models/"):
        TrainedRun(tmp_path / "r")


def test_what_is_no_text_is_no_setting_of_a_run(tmp_path: Path) -> None:
    module = nn.Linear(5, 3)
    with pytest.raises(UserError, match="init: give a file"):
        idiolect.simulate("fedavg", federation(), module, init=module, out=tmp_path / "r")
    with pytest.raises(UserError, match="did you mean 'rounds'"):
        idiolect.simulate("fedavg", federation(), module, round=3, out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_compare_from_python_is_a_fair_one(tmp_path: Path) -> None:
    done = idiolect.compare(
        ["local", {"name": "fedas", "epochs": 2}], federation(), nn.Linear(5, 3),
        out=tmp_path, rounds=2, seeds=(0, 1), lr=0.1,
    )  # fmt: skip
    assert [(row["method"], row["seeds"], row["lr"]) for row in done.rows] == [
        ("local", [0, 1], 0.1),
        ("fedas", [0, 1], 0.1),
    ]
    assert all(row["gain"] is not None for row in done.rows if row["method"] == "fedas")
    section = read_config(tmp_path / "fedas-seed1")["method"]
    assert (section["epochs"], section["batch_size"]) == (2, 32)
    assert repr(done).startswith("Compared(4 runs: local ") and len(repr(done)) < 200
    assert done._repr_markdown_().startswith("| method |")


def test_runs_of_other_data_are_not_compared(tmp_path: Path) -> None:
    """`gain over local` needs the same clients; the data is part of a run's settings."""
    module = nn.Linear(5, 3)
    for seed, method in enumerate(("local", "fedavg")):
        idiolect.simulate(method, federation(seed), module, rounds=1, out=tmp_path / method)
    rows = report.rows(report.find([tmp_path]))
    assert [row["gain"] for row in rows] == [None, None]
