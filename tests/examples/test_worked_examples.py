"""The commands of docs/examples.md, run as they stand there, on the files its script writes."""

import os
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from idiolect import report
from tests.cli.calls import call

ROOT = Path(__file__).parents[2]
REAL = Path(os.environ.get("IDIOLECT_DATA") or "nowhere").absolute()
PAGE = (ROOT / "docs/examples.md").read_text(encoding="utf-8")
COMMANDS = {line.split()[-1]: line for line in PAGE.splitlines() if line.startswith("idiolect ")}
# What each must reach with its second best method or better: the mean of the last round.
REACHED = {
    "diabetes": ("rmse", 0.75),
    "kinds": ("accuracy", 0.8),
    "letters": ("perplexity", 9.0),
    "labels": ("auc", 0.8),
    "lights": ("accuracy", 0.5),
    "machines": ("accuracy", 0.6),
    "writers": ("accuracy", 0.5),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("IDIOLECT_DATA", "small")
        patch.setenv("IDIOLECT_CACHE", str(folder / "cache"))
        runpy.run_path(str(ROOT / "examples/own-data/make_data.py"), run_name="__main__")
        yield folder


def test_every_example_is_tested() -> None:
    assert set(COMMANDS) == set(REACHED)


@pytest.mark.parametrize("name", REACHED)
def test_the_command_runs_and_learns(name: str, files: Path) -> None:
    words = shlex.split(COMMANDS[name])
    done = call(*words[1:])
    assert done.exit_code == 0, done.output
    runs = [report.load(files / name / f"{method}-seed0") for method in words[2:5]]
    metric, wanted = REACHED[name]
    assert all(run.summary.get("metric", {"name": "accuracy"})["name"] == metric for run in runs)
    means = sorted(run.summary["accuracy"]["last"]["mean"] for run in runs)
    lower = runs[0].summary.get("metric", {}).get("better") == "lower"
    assert means[1] <= wanted if lower else means[1] >= wanted, means
    assert all(run.names for run in runs)  # clients keep their names to the last table
    table = re.search(rf"--out {name}\n```\n\n((?:\|.*\n)+)", PAGE)
    printed = (files / name / "compare.md").read_text(encoding="utf-8").splitlines()
    assert table is not None
    for shown, line in zip(table[1].splitlines(), printed, strict=True):
        assert shown.split("|")[1] == line.split("|")[1]  # the same methods
    assert printed[0].startswith(table[1].splitlines()[0].rstrip("| "))


def test_writers_that_never_trained_get_a_model(files: Path) -> None:
    if not (files / "writers").exists():
        call(*shlex.split(COMMANDS["writers"])[1:])
    found = report.load(files / "writers/fedavg-seed0").summary
    assert found["clients_unseen"] == 3
    assert found["unseen"]["last"]["mean"] > 0.3


@pytest.mark.heavy
@pytest.mark.skipif(
    not (REAL / "femnist").is_dir(), reason="set IDIOLECT_DATA to a folder that has femnist"
)
def test_the_writers_of_the_real_femnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IDIOLECT_DATA", str(REAL))
    words = shlex.split(COMMANDS["writers"])[1:]
    assert call(*words, "--clients", "30").exit_code == 0
    found = report.load(tmp_path / "writers/fedavg-seed0").summary
    assert found["clients"] == 30 and found["clients_unseen"] == 3
    assert found["unseen"]["last"]["mean"] > 0.1  # 62 classes
