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
from idiolect.runs.progress import Progress
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


def test_rounds_are_shown_and_reprs_are_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line a round for a log file, as the command line has it; nothing where nothing is
    written."""
    idiolect.simulate("fedavg", federation(), nn.Linear(5, 3), rounds=1)
    assert capsys.readouterr() == ("", "")
    idiolect.simulate("fedavg", federation(), nn.Linear(5, 3), rounds=1, out=tmp_path / "r")
    out, shown = capsys.readouterr()
    assert not out and shown.startswith("fedavg seed 0  round 1/1  mean")
    quiet = {"out": tmp_path / "q", "progress": Progress()}
    idiolect.simulate("fedavg", federation(), nn.Linear(5, 3), rounds=1, **quiet)
    assert capsys.readouterr() == ("", "")
    assert repr(federation()) == (
        "Federation(3 clients, 41 train, 0 val, 41 test samples of shape [5], classification, "
        "3 classes)"
    )
    assert idiolect.models.build({"name": "linear"}, (5,), 3) is not None


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


def test_a_sweep_from_python(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'mu'"):
        idiolect.sweep("fedprox", federation(), nn.Linear(5, 3), {"my": [1]}, out=tmp_path)
    with pytest.raises(UserError, match="as a list of values"):
        idiolect.sweep("fedprox", federation(), nn.Linear(5, 3), {"mu": "0.1"}, out=tmp_path)
    with pytest.raises(UserError, match=r"method\.mu must be"):
        idiolect.sweep("fedprox", federation(), nn.Linear(5, 3), {"mu": [1, -1]}, out=tmp_path)
    assert not list(tmp_path.iterdir())
    over = {"mu": [0.1, 1.0], "participation": [0.4, 1.0]}
    done = idiolect.sweep(
        "fedprox", federation(), nn.Linear(5, 3), over, out=tmp_path / "s", rounds=1
    )
    assert sorted(p.name for p in (tmp_path / "s").iterdir()) == [
        f"fedprox-mu{mu}-participation{rate}-seed0" for mu in (0.1, 1.0) for rate in (0.4, 1.0)
    ]
    assert [run.config["method"]["mu"] for run in done.runs] == [0.1, 0.1, 1.0, 1.0]
    assert repr(done).startswith("Compared(4 runs: fedprox ") and len(repr(done)) < 300


def test_results_show_themselves(tmp_path: Path) -> None:
    module = nn.Linear(5, 3)
    written = idiolect.simulate("fedper", federation(), module, rounds=2, out=tmp_path / "r" / "a")
    loaded = idiolect.load_run(tmp_path / "r" / "a")
    for shown in (written._repr_html_(), loaded._repr_html_()):
        assert shown.startswith("<table>") and "<td>fedper</td><td>2</td>" in shown
    page = idiolect.report(tmp_path / "r", tmp_path / "page.html")
    assert "<html" in page.read_text() and idiolect.report.rows([loaded])
    table = idiolect.report([loaded], tmp_path / "table.md").read_text()
    assert "| fedper |" in table
    with pytest.raises(UserError, match=r"written as \.html"):
        idiolect.report(loaded, tmp_path / "table.doc")
    with pytest.raises(UserError, match="needs runs"):
        idiolect.report([])
    pandas = pytest.importorskip("pandas")
    for one in (written, loaded):
        frame = one.frame()
        assert isinstance(frame, pandas.DataFrame) and len(frame) == 9
        assert {"round", "client", "accuracy_before"} <= set(frame.columns)
