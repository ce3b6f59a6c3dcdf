"""Regression and several labels, from files on disk by command line only."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from idiolect import report
from tests.cli.calls import call

FEW = ("--rounds", "12", "--set", "method.lr=0.05", "--set", "method.epochs=2")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ok(*words: object) -> str:
    done = call(*words)
    assert done.exit_code == 0, done.output
    return done.stdout


def houses(path: Path) -> None:
    draw = np.random.default_rng(0)
    lines = ["town,rooms,age,price"]
    for i in range(200):
        rooms, age = draw.integers(1, 8), draw.uniform(0, 60)
        price = 3 * rooms - 0.05 * age + (i % 4) + draw.normal(0, 0.2)
        lines.append(f"town {i % 4},{rooms},{age:.2f},{price:.4f}")
    path.write_text("\n".join(lines) + "\n")


def test_regression_by_group() -> None:
    houses(Path("houses.csv"))
    tabular = ("--data", "houses.csv", "--task", "regression", "--set", "data.label=price")
    tabular += ("--set", "data.client=town", "--set", "data.standardize=true")
    shown = ok("compare", "local", "fedavg", "fedper", "ditto", *tabular, *FEW, "--out", "c")
    assert "rmse (lower is better)" in shown and "accuracy" not in shown
    found = {name: report.load(Path(f"c/{name}-seed0")) for name in ("local", "fedavg", "ditto")}
    run = found["fedavg"]
    assert "rmse_before" in run.table and "accuracy_before" not in run.table
    assert run.summary["metric"] == {"name": "rmse", "better": "lower"}
    last = run.summary["accuracy"]["last"]
    assert last["worst"] == max(run.table["rmse_before"][-4:]) >= last["p10"] >= last["mean"]
    begun = run.events[0]["accuracy"]["mean"]
    assert last["mean"] < 0.5 * begun  # it learnt
    best = run.summary["accuracy"]["best"]
    assert best["mean"] == min(e["accuracy"]["mean"] for e in run.events[1:])
    rows = {row["method"]: row for row in report.rows(list(found.values()))}
    gap = found["local"].summary["accuracy"]["last"]["mean"] - last["mean"]
    assert rows["fedavg"]["gain"] == pytest.approx(gap)  # less error is a gain
    page = Path("c/report.html").read_text()
    assert "rmse" in page and "accuracy, %" not in page
    ok("report", "c")
    ok("compare", "fedavg", *tabular, "--rounds", "1", "--seeds", "0,1", "--out", "s")
    r2 = json.loads(ok("run", "fedavg", *tabular, *FEW, "--metric", "r2", "--json"))
    assert r2["metric"] == {"name": "r2", "better": "higher"} and r2["accuracy"]["last"]["mean"] > 0


@pytest.mark.parametrize("name", ["fedas", "fedproto", "fedpac", "pflego", "fedrod", "cd2_pfed"])
def test_methods_that_need_classes_say_so(name: str) -> None:
    houses(Path("houses.csv"))
    words = ("--data", "houses.csv", "--task", "regression", "--set", "data.label=price")
    done = call("run", name, *words, *FEW[:2], "--set", "data.client=town")
    assert done.exit_code == 2 and "needs samples with one class each" in done.stderr


def test_splits_that_need_classes_say_so_and_iid_is_the_default() -> None:
    houses(Path("houses.csv"))
    words = ("--data", "houses.csv", "--task", "regression", "--set", "data.label=price")
    done = call("run", "fedavg", *words, "--split", "dirichlet")
    assert done.exit_code == 2 and "use split iid or natural" in done.stderr
    ok("run", "fedavg", *words, "--clients", "3", "--rounds", "1", "--out", "r")
    assert report.load(Path("r")).config["split"]["name"] == "iid"
    bad = call("run", "fedavg", *words, "--metric", "accuracy")
    assert bad.exit_code == 2 and "use rmse, mae, r2" in bad.stderr
    assert "test sample" in ok("data", "inspect", "houses.csv", *words[2:])


def test_several_labels() -> None:
    draw = np.random.default_rng(1)
    x = draw.normal(size=(160, 4)).astype(np.float32)
    y = np.stack([x[:, 0] > 0, x[:, 1] + x[:, 2] > 0, x[:, 3] > 0.5], 1).astype(int)
    np.savez("notes.npz", x=x, y=y, client=np.arange(160) % 4)
    words = ("--data", "notes.npz", "--task", "multilabel", "--rounds", "30")
    words += ("--set", "method.lr=0.5")
    told = json.loads(ok("run", "fedavg", *words, "--json"))
    assert told["metric"]["name"] == "macro_f1" and told["accuracy"]["last"]["mean"] > 0.8


@pytest.mark.parametrize("task", ["regression", "next-token"])
def test_after_training(task: str) -> None:
    """Export, prediction and a newcomer know the task: its metric, its answers, its form."""
    draw = np.random.default_rng(0)
    if task == "regression":
        x = draw.normal(size=(40, 3)).astype(np.float32)
        arrays = {"x": x, "y": x[:, :2] * 2}
    else:
        text = draw.integers(0, 4, (40, 6))
        arrays = {"x": text[:, :-1], "y": text[:, 1:]}
    np.savez("all.npz", client=np.arange(40) % 4, **arrays)
    ok("run", "fedavg", "--data", "all.npz", "--task", task, "--rounds", "2", "--out", "r")
    np.savez("new.npz", x=arrays["x"][:5], y=arrays["y"][:5])
    parts = {f"{k}_{part}": v[:8] for k, v in arrays.items() for part in ("train", "test")}
    np.savez("ward.npz", **parts)
    metric = {"regression": "rmse", "next-token": "perplexity"}[task]
    said = json.loads(ok("predict", "r", "--client", "1", "--data", "new.npz", "--json"))
    assert said["samples"] == 5 and said[metric] > 0
    head = Path("new.predictions.csv").read_text().splitlines()[0]
    names = {"regression": ["value0", "value1"], "next-token": [f"step{k}" for k in range(5)]}[task]
    assert head.replace('"', "").split(",") == ["row", *names]
    assert metric in ok("predict", "r", "--client", "1", "--data", "new.npz")
    card = json.loads(ok("export", "r", "--client", "1", "--out", "e", "--json"))
    assert card["metric"]["name"] == metric and card["task"] == task
    assert card["metric"]["value"] == pytest.approx(card["metric"]["reported"], rel=1e-5)
    assert metric in ok("export", "r", "--client", "1", "--out", "e")
    lines = re.search(r"```python\n(.*?)```", Path("e/README.md").read_text(), re.S)
    assert lines is not None
    os.chdir("e")  # the lines of its README load the model
    closed = lines[1].replace('json.load(open("card.json"))', "CARD")
    exec(closed, {"CARD": json.loads(Path("card.json").read_text())})
    os.chdir("..")
    gap = json.loads(ok("adapt", "r", "--data", "ward.npz", "--json"))
    assert gap["participants"] > 0 and np.isfinite(gap["gap"])
    assert f"ward: {metric} " in ok("adapt", "r", "--data", "ward.npz")
