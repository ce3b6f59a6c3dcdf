"""The command line, on the real simulation with a handful of rounds."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from idiolect import methods, models, report
from idiolect.cli.app import app
from idiolect.runs import directory
from idiolect.simulation.side_by_side import Sweep
from idiolect.simulation.simulation import Simulation

TINY = ["--clients", "4", "--rounds", "2", "--model", "linear", "--set", "split.alpha=0.5"]


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="idiolect")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "command", ["demo", "list", "run", "resume", "compare", "report", "data", "data inspect"]
)
def test_every_command_has_help(command: str) -> None:
    result = call(*command.split(), "--help")
    assert result.exit_code == 0
    assert "idiolect" in result.stdout and ("Examples" in result.stdout or command == "data")


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, idiolect.cli.app; assert not {'torch', 'numpy', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kind", ["methods", "datasets", "splits", "models", "recipes"])
def test_list(kind: str) -> None:
    assert call("list", kind).exit_code == 0
    entries = json.loads(call("list", kind, "--json").stdout)
    assert all(entry["name"] for entry in entries) and (entries or kind == "recipes")


def test_methods_are_described() -> None:
    """Each with its paper, what it sends and all its hyperparameters."""
    entries = {one["name"]: one for one in json.loads(call("list", "methods", "--json").stdout)}
    assert entries.keys() == set(methods.REGISTRY)
    for name, one in entries.items():
        kind = methods.REGISTRY[name]
        for key in ("what", "paper", "personal", "traffic"):
            assert isinstance(one[key], str) and one[key], (name, key)
        assert one["year"] > 2015 or name == "local"
        assert one["asynchronous"] is kind.asynchronous
        assert one["rounds_default"] == kind.rounds_default
        known = {f.name: f.default for f in fields(kind)}
        assert {o["name"]: o["default"] for o in one["options"]} == known
        assert all(o["type"] and o["doc"] for o in one["options"]), name


def test_run_writes_a_run_and_json_is_alone_on_stdout() -> None:
    result = call("run", "fedper", *TINY, "--json")
    assert result.exit_code == 0
    summary = json.loads(result.stdout)
    assert summary["method"] == "fedper" and summary["accuracy"]["last"]["mean"] > 0
    assert (Path("runs/fedper-digits-dirichlet-seed0") / "summary.json").exists()
    assert call("run", "fedper", *TINY).exit_code == 0
    assert Path("runs/fedper-digits-dirichlet-seed0-2").is_dir()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["run", "fedavgg"], "did you mean 'fedavg'"),
        (["run", "fedavg", "--data", "cifar"], "did you mean 'cifar10'"),
        (["run", "fedavg", "--split", "dirichlt"], "did you mean 'dirichlet'"),
        (["run", "fedavg", "--model", "lnear"], "did you mean 'linear'"),
        (["run", "fedavg", "--set", "method.lrr=1"], "did you mean 'lr'"),
        (["run", "fedavg", "--set", "split.alpha=0"], "alpha"),
        (["run", "fedavg", "--clients", "5000"], "clients"),
        (["run", "fedavg", "--participation", "0"], "participation"),
        (["run", "fedavg", "--engine", "stack"], "did you mean 'stacked'"),
        (["run", "fedavg", "--init", "none.safetensors"], "does not exist"),
        (["run", "fedavg", "--config", "none.yaml"], "cannot read"),
        (["run", "fedavg", "--model", "torch.nn:Flatten"], "classes"),
        (["resume", "nowhere"], "not a run"),
        (["report", "nowhere"], "does not exist"),
        (["report", ".", "--format", "pdf"], "format"),
        (["list", "method"], "did you mean 'methods'"),
        (["compare", "fedavg", "fedavg"], "once"),
        (["compare", "fedavg", "--seeds", "0,x"], "0,1,2"),
        (["compare", "fedprox", "--sweep", "mu"], "mu=0.01,0.1"),
        (["compare", "fedprox", "--sweep", "mu=0.1,"], "mu=0.01,0.1"),
        (["compare", "fedprox", "--sweep", "mo=0.1,1"], "did you mean 'mu'"),
        (["compare", "fedprox", "fedavg", "--sweep", "fedavg.mu=1"], "hyperparameter of fedavg"),
        (["compare", "fedprox", "--sweep", "fedproxx.mu=1"], "did you mean 'fedprox'"),
        (["compare", "fedprox", "--sweep", "mu=0.1,1e-1"], "different values"),
        (["compare", "fedprox", "--sweep", "mu=1", "--sweep", "fedprox.mu=2"], "twice"),
        (["compare", "fedprox", "--sweep", "mu=0.1,x"], "must be a number"),
        (["data", "get", "mnst"], "did you mean 'mnist'"),
        (["data", "inspect", "digits", "--split", "shard"], "did you mean 'shards'"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(words: list[str], hint: str) -> None:
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert hint in result.stderr and result.stdout == ""
    assert not list(Path().iterdir())


def test_a_full_gpu_is_one_line_and_what_is_done_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["compare", "local", "fedavg", *TINY, "--out", "c"]
    step = Simulation.step

    def full(sim: Simulation, wait: bool = True) -> Any:
        if sim.method.name == "fedavg":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 60.00 MiB.")
        return step(sim, wait)

    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "step", full)
        result = call(*words)
    assert result.exit_code == 1 and result.stderr.splitlines()[-1].startswith("error: the GPU's")
    assert "Traceback" not in result.output
    again = call(*words)
    assert again.exit_code == 0 and again.stderr.count("already finished") == 1


def test_compare_reports_and_skips_what_is_done() -> None:
    words = ["compare", "local", "fedavg", *TINY, "--seeds", "0,1", "--out", "c"]
    result = call(*words, "--set", "fedavg.epochs=2")
    assert result.exit_code == 0, result.output
    assert "gain over local" in result.stdout and "report.html" in result.stdout
    for name in ("compare.csv", "compare.md", "report.html", "fedavg-seed1/summary.json"):
        assert (Path("c") / name).exists()
    assert directory.read_config(Path("c/fedavg-seed0"))["method"]["epochs"] == 2
    again = call(*words, "--set", "fedavg.epochs=2", "--json")
    assert again.stderr.count("already finished") == 4
    assert [row["method"] for row in json.loads(again.stdout)] == ["local", "fedavg"]
    other = call(*words, "--set", "fedavg.epochs=3")
    assert other.exit_code == 2 and "another run" in other.stderr


def test_a_sweep_has_a_run_and_a_row_for_every_point() -> None:
    words = ["compare", "fedavg", "fedprox", *TINY, "--seeds", "0,1", "--out", "s"]
    words += ["--sweep", "fedprox.lr=0.01,5e-2", "--sweep", "mu=0.1,1", "--sweep", "epochs=1,2"]
    result = call(*words, "--set", "fedavg.lr=0.1", "--json")
    assert result.exit_code == 0, result.output
    points = [f"lr={lr} epochs={e} mu={mu}" for lr in (0.01, 0.05) for mu in (0.1, 1.0)
              for e in (1, 2)]  # fmt: skip
    labels = [row["method"] for row in json.loads(result.stdout)]
    assert labels == ["fedavg epochs=1", "fedavg epochs=2", *(f"fedprox {p}" for p in points)]
    assert all(row["seeds"] == [0, 1] for row in json.loads(result.stdout))
    assert "| fedprox lr=0.05 epochs=2 mu=1.0 |" in Path("s/compare.md").read_text()
    method = directory.read_config(Path("s/fedprox-lr0.05-mu1.0-epochs2-seed1"))["method"]
    assert (method["lr"], method["mu"], method["epochs"]) == (0.05, 1.0, 2)
    assert directory.read_config(Path("s/fedavg-epochs2-seed0"))["method"]["lr"] == 0.1
    assert "fedprox lr 0.01,0.05 mu 0.1,1.0 seed 0,1" in result.stderr  # four points in a stack
    again = call(*words, "--set", "fedavg.lr=0.1")
    assert again.stderr.count("already finished") == 20


def test_an_interrupted_sweep_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command again, after a stop in the middle, ends with the bits of one that ran
    through."""
    words = ["compare", "fedprox", *TINY, "--rounds", "4", "--checkpoint-every", "2"]
    words += ["--sweep", "mu=0.1,1", "--sweep", "momentum=0.0,0.5"]
    assert call(*words, "--out", "whole").exit_code == 0
    taken, step = [], Sweep.step

    def stopping(self: Sweep) -> Any:
        if len(taken) == 3:
            raise KeyboardInterrupt
        taken.append(1)
        return step(self)

    with monkeypatch.context() as patched:
        patched.setattr(Sweep, "step", stopping)
        stopped = call(*words, "--out", "part")
    assert stopped.exit_code == 130 and "after round 2" in stopped.stderr
    assert call(*words, "--out", "part").exit_code == 0
    names = sorted(path.name for path in Path("whole").iterdir() if path.is_dir())
    assert len(names) == 4
    for name in names:
        ours, theirs = (report.load(Path(out) / name) for out in ("part", "whole"))
        assert [event["round"] for event in ours.events] == [0, 1, 2, 3, 4]
        for column, values in theirs.table.items():
            np.testing.assert_array_equal(ours.table[column], values, err_msg=f"{name} {column}")


def test_report_formats(tmp_path: Path) -> None:
    call("run", "local", *TINY, "--out", "r")
    assert "accuracy" in call("report", "r").stdout
    assert call("report", "r", "--format", "md").stdout.startswith("| method")
    assert call("report", "r", "--format", "csv").stdout.startswith("method,")
    assert call("report", "r", "-o", "page.html").exit_code == 0
    assert Path("page.html").stat().st_size > 1_000_000
    assert call("report", "r", "-o", "table.md").exit_code == 0
    assert Path("table.md").read_text().startswith("| method")
    assert call("report", "r", "-o", "none/table.md").exit_code == 2


def test_killed_and_resumed_equals_left_alone(tmp_path: Path) -> None:
    words = ["run", "fedas", *TINY[:2], "--rounds", "12", "--model", "mlp", "--set"]
    words += ["checkpoint_every=2", "--set", "method.epochs=1", "--participation", "0.5"]
    program = [sys.executable, "-m", "idiolect", *words, "--out", "killed"]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and len(directory.read_events(Path("killed"))) < 4:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert call("resume", "killed").exit_code == 0
    assert call(*words, "--out", "alone").exit_code == 0
    killed, alone = report.load(Path("killed")), report.load(Path("alone"))
    for key in ("accuracy", "accuracy_after", "bytes_up", "bytes_down", "samples", "protocol"):
        assert killed.summary[key] == alone.summary[key]
    for name, column in alone.table.items():
        assert column.tobytes() == killed.table[name].tobytes(), name
    assert "already finished" in call("resume", "killed").stderr


def test_exported_model_loads_into_the_plain_module_and_starts_another_run() -> None:
    assert call("run", "fedper", *TINY, "--save-models", "last", "--out", "a").exit_code == 0
    model = models.build({"name": "linear"}, (1, 8, 8), 10)
    model.load_state_dict(load_file("a/models/last/client_0002.safetensors"))
    assert torch.isfinite(model(torch.zeros(1, 1, 8, 8))).all()
    result = call("run", "fedper", *TINY, "--init", "a/models/last", "--out", "b")
    assert result.exit_code == 0, result.output
    begun, ended = report.load(Path("b")).events[0], report.load(Path("a")).events[-1]
    assert (
        begun["accuracy"] == ended["accuracy"]
    )  # base from the server's file, heads from clients'
    Path("bad.safetensors").write_bytes(b"nonsense")
    bad = call("run", "fedavg", *TINY, "--init", "bad.safetensors")
    assert bad.exit_code == 2 and "not a readable safetensors file" in bad.stderr


def test_schedule_and_config_file() -> None:
    Path("who.json").write_text("[[0, 1], [2, 3]]")
    Path("mine.yaml").write_text("rounds: 2\nsplit: {name: iid, clients: 4}\nmodel: linear\n")
    result = call("run", "fedavg", "--config", "mine.yaml", "--schedule", "who.json", "--out", "s")
    assert result.exit_code == 0, result.output
    assert [event["started"] for event in directory.read_events(Path("s"))] == [[], [0, 1], [2, 3]]
    Path("who.json").write_text("[[0, 1], [2, 1]]")
    Path("s/summary.json").unlink()
    changed = call("resume", "s")
    assert changed.exit_code == 2 and "changed since the run started" in changed.stderr


def test_data_commands() -> None:
    assert "digits" in call("data", "list").stdout
    assert "scikit-learn" in call("data", "get", "digits").stdout
    about = json.loads(call("data", "inspect", "digits", "--clients", "5", "--json").stdout)
    assert about["n_clients"] == 5
    assert "5 clients" in call("data", "inspect", "digits", "--clients", "5").stdout
