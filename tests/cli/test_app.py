"""The command line as a whole: help, mistakes, exit codes."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from idiolect.__main__ import LOOKS, main
from idiolect.cli import app
from idiolect.simulation.simulation import Simulation
from tests.cli.calls import TINY, call


@pytest.mark.parametrize(
    "command",
    ["demo", "list", "run", "resume", "compare", "report", "status", "data", "data inspect"],
)
def test_every_command_has_help(command: str) -> None:
    result = call(*command.split(), "--help")
    assert result.exit_code == 0
    assert "idiolect" in result.stdout and ("Examples" in result.stdout or command == "data")


def test_paragraphs_of_help_are_one_line_each() -> None:
    told = [(one.callback, one.help or "") for one in app.app.registered_commands]
    assert told and not [who for who, text in told if "\n" in text.replace("\n\n", "")]
    assert "same local work" in " ".join(call("advise", "--help").stdout.split())


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, idiolect.cli.app; assert not {'torch', 'numpy', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, LOOKS),
        ({"GOMP_SPINCOUNT": "5"}, "5"),
        ({"OMP_WAIT_POLICY": "active"}, None),
    ],
)
def test_threads_that_wait_sleep_soon_unless_told_otherwise(
    given: dict[str, str], found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must be said before PyTorch is imported, and processes that are started inherit it."""
    monkeypatch.setattr(os, "environ", given)
    monkeypatch.setattr(app, "main", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    main()
    assert os.environ.get("GOMP_SPINCOUNT") == found
