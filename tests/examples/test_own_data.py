"""A user's own files from the command line only: table by group, images in folders, signals."""

import json
from pathlib import Path

import pytest

from idiolect import report
from tests.cli.calls import call
from tests.data.own import files

FEW = ("--rounds", "2", "--set", "method.epochs=1")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ok(*words: object) -> str:
    done = call(*words)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_table_by_group_through_every_command() -> None:
    files.table(Path("trees.csv"))
    columns = ("--set", "data.client=site", "--set", "data.label=kind")
    tabular = ("--data", "trees.csv", *columns, "--set", "data.standardize=true")
    ok("compare", "local", "fedavg", "fedper", *tabular, *FEW, "--out", "c")
    found = report.load(Path("c/fedper-seed0"))
    assert found.names == {i: f"site {i}" for i in range(4)}
    assert found.config["split"]["name"] == "natural" and found.config["model"]["name"] == "tabular"
    assert Path(found.config["data"]["name"]).is_absolute()
    assert "site 2" in Path("c/report.html").read_text()
    ok("report", "c")
    ok("run", "fedavg", *tabular, *FEW, "--split", "dirichlet", "--clients", "3")
    assert Path("runs/fedavg-trees-dirichlet-seed0/summary.json").exists()
    ok("compare", "fedavg", *tabular, *FEW, "--sweep", "lr=0.01,0.1", "--out", "s")


def test_settings_in_a_file_and_a_resume_that_notices_changed_data() -> None:
    files.table(Path("trees.csv"))
    Path("mine.yaml").write_text(
        "data: {name: trees.csv, client: site, label: kind, input: [warmth, wet]}\nrounds: 3\n"
        "checkpoint_every: 1\n"
    )
    ok("run", "fedavg", "--config", "mine.yaml", "--out", "a")
    assert report.load(Path("a")).config["split"]["name"] == "natural"
    Path("a/summary.json").unlink()
    ok("resume", "a")
    Path("a/summary.json").unlink()
    files.table(Path("trees.csv"), rows=124)
    changed = call("resume", "a")
    assert changed.exit_code == 2 and "trees.csv changed since the run started" in changed.stderr


def test_images_in_folders() -> None:
    files.images(Path("photos"))
    ok("compare", "local", "fedavg", "--data", "photos", *FEW, "--out", "c")
    found = report.load(Path("c/fedavg-seed0"))
    assert set(found.names.values()) == {"north", "south"}
    assert found.config["model"]["name"] == "cnn_small"


def test_signals() -> None:
    files.signals(Path("signals.npz"))
    told = json.loads(ok("run", "fedper", "--data", "signals.npz", "--rounds", "20", "--json"))
    assert told["clients"] == 3 and told["accuracy"]["last"]["mean"] > 0.8


CODE = """
import numpy as np
from idiolect.data import Federation

def clinics(seed, size=20):
    draw = np.random.default_rng(seed)
    def part(n):
        y = draw.integers(0, 2, n)
        return (y[:, None] + draw.normal(0, 0.3, (n, 2))).astype(np.float32), y
    made = []
    for _ in range(3):
        (a, b), (c, d) = part(size), part(size)
        made.append({"x_train": a, "y_train": b, "x_test": c, "y_test": d})
    return Federation.from_arrays(made, classes=2, names=["east", "west", "mid"])

def broken():
    raise RuntimeError("no connection")
"""


def test_own_code_makes_the_clients_only_where_it_is_allowed() -> None:
    Path("mine.py").write_text(CODE)
    sets = ("--set", "data.size=12", "--set", "checkpoint_every=1")
    ok("run", "fedper", "--data", "mine.py:clinics", *sets, *FEW, "--out", "a")
    found = report.load(Path("a"))
    assert set(found.names.values()) == {"east", "west", "mid"}
    assert found.table["train_size"].tolist()[:3] == [12, 12, 12]
    Path("a/summary.json").unlink()
    ok("resume", "a")  # sealed: this user allowed it
    Path("mine.yaml").write_text("data: mine.py:clinics\nrounds: 1\n")
    refused = call("run", "fedavg", "--config", "mine.yaml", "--out", "b")
    assert refused.exit_code == 2 and "--allow-code" in refused.stderr and not Path("b").exists()
    ok("run", "fedavg", "--config", "mine.yaml", "--out", "b", "--allow-code", "mine.py:clinics")
    failed = call("run", "fedavg", "--data", "mine.py:broken", *FEW)
    assert failed.exit_code == 2 and "no connection" in failed.stderr
    split = call("run", "fedavg", "--data", "mine.py:clinics", "--split", "iid", *FEW)
    assert split.exit_code == 2 and "leave --split out" in split.stderr
    Path("a/summary.json").unlink()
    Path("mine.py").write_text(CODE.replace("0.3", "0.4"))
    changed = call("resume", "a")
    assert changed.exit_code == 2 and "code of data" in changed.stderr


def test_an_unallowed_function_is_never_imported() -> None:
    Path("trap.py").write_text("open('ran', 'w')\n\ndef f(): ...\n")
    Path("mine.yaml").write_text("data: trap.py:f\nrounds: 1\n")
    for words in (("run", "fedavg"), ("compare", "fedavg")):
        done = call(*words, "--config", "mine.yaml")
        assert done.exit_code == 2 and "nobody allowed" in done.stderr
    assert not Path("ran").exists()
