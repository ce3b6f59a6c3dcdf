"""`idiolect run` and `resume`, on the real simulation with a handful of rounds."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from idiolect import models, report
from idiolect.runs import directory
from tests.cli.calls import TINY, call


def test_run_writes_a_run_and_json_is_alone_on_stdout() -> None:
    result = call("run", "fedper", *TINY, "--json")
    assert result.exit_code == 0
    summary = json.loads(result.stdout)
    assert summary["method"] == "fedper" and summary["accuracy"]["last"]["mean"] > 0
    assert (Path("runs/fedper-digits-dirichlet-seed0") / "summary.json").exists()
    assert call("run", "fedper", *TINY).exit_code == 0
    assert Path("runs/fedper-digits-dirichlet-seed0-2").is_dir()


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


def test_a_finished_run_begins_again_from_the_start() -> None:
    assert call("run", "fedavg", *TINY, "--out", "a").exit_code == 0
    first = report.load(Path("a")).summary["accuracy"]
    again = call("resume", "a", "--from-start")
    assert again.exit_code == 0 and "already finished" not in again.stderr, again.output
    assert "a/earlier-1" in again.stderr and Path("a/earlier-1/summary.json").exists()
    assert report.load(Path("a")).summary["accuracy"] == first


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


def test_resume_without_checkpoints_asks_and_begins_again_when_told_to() -> None:
    assert call("run", "fedavg", *TINY, "--out", "a").exit_code == 0
    Path("a/summary.json").unlink()
    shutil.rmtree("a/checkpoint")
    lost = call("resume", "a")
    assert lost.exit_code == 2 and "idiolect resume a --from-start" in lost.stderr
    assert len(directory.read_events(Path("a"))) == 3
    again = call("resume", "a", "--from-start")
    assert again.exit_code == 0 and "a/earlier-1" in again.stderr, again.output
    assert len(directory.read_events(Path("a/earlier-1"))) == 3
    assert [event["round"] for event in directory.read_events(Path("a"))] == [0, 1, 2]


def test_what_a_settings_file_says_about_another_split_or_network_is_left_out_with_a_warning() -> (
    None
):
    """Fewer clients than the file says would be a silent other experiment."""
    file = "rounds: 1\nmodel: {name: mlp, hidden: [7]}\n"
    Path("mine.yaml").write_text(file + "split: {name: dirichlet, clients: 4, alpha: 9}\n")
    words = ["run", "fedavg", "--config", "mine.yaml", "--split", "iid", "--model", "linear"]
    result = call(*words, "--out", "a")
    assert result.exit_code == 0, result.output
    said = [line for line in result.stderr.splitlines() if "left out" in line]
    assert said == [
        "warning: mine.yaml has settings of mlp; left out for linear: hidden (give them with --set "
        "model.KEY=…)",
        "warning: mine.yaml has settings of dirichlet; left out for iid: clients, alpha (give them "
        "with --set split.KEY=…)",
    ]
    told = call(*words, "--clients", "4", "--out", "b")
    assert "left out for iid: alpha (" in told.stderr


def test_what_a_settings_file_says_about_another_method_is_left_out_with_a_warning() -> None:
    file = "rounds: 1\nmodel: linear\nsplit: {clients: 4}\n"
    Path("mine.yaml").write_text(file + "method: {name: fedavg, lr: 0.1, epochs: 1, momentum: 0}\n")
    words = ["--config", "mine.yaml", "--set", "method.momentum=0.5"]
    result = call("run", "fedper", *words, "--out", "other")
    assert result.exit_code == 0, result.output
    [said] = [line for line in result.stderr.splitlines() if "left out" in line]
    assert said.startswith("warning: mine.yaml has settings of fedavg; left out for fedper: lr")
    assert "momentum" not in said
    same = call("run", "fedavg", *words, "--out", "same")
    assert same.exit_code == 0 and "left out" not in same.stderr
    assert directory.read_config(Path("same"))["method"]["lr"] == 0.1
