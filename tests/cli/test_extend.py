"""`idiolect new` writes what works and `idiolect check` says what does not."""

import json
from pathlib import Path
from runpy import run_path

import pytest

from idiolect.conformance.laws import LAWS
from idiolect.conformance.problem import Subject
from tests.cli.calls import call


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_is_new_works_and_its_test_passes(here: Path) -> None:
    for kind, name in (("method", "Halfway"), ("split", "Growing"), ("model", "Narrow")):
        assert call("new", kind, name, "--out", "mine").exit_code == 0
    own = {"--split": "mine/growing.py:Growing", "--model": "mine/narrow.py:Narrow"}
    choose = [word for pair in own.items() for word in pair]
    done = call("run", "mine/halfway.py:Halfway", *choose, "--rounds", "1", "--out", "r")
    assert done.exit_code == 0, done.output
    written = run_path("mine/test_halfway.py")
    subject = Subject(written["NAME"], [written["NAME"]])
    for law in LAWS:
        written["test_the_law_holds"](law, subject)
    run_path("mine/test_growing.py")["test_every_sample_comes_to_one_client"]()
    run_path("mine/test_narrow.py")["test_it_takes_samples_and_its_settings"]()


def test_nothing_is_overwritten(here: Path) -> None:
    (here / "test_halfway.py").write_text("mine")
    done = call("new", "method", "Halfway")
    assert done.exit_code == 2 and "test_halfway.py is there already" in done.stderr
    assert (here / "test_halfway.py").read_text() == "mine"
    assert not (here / "halfway.py").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["methods", "Halfway"], "did you mean 'method'"),
        (["method", "half way"], "is no name for a class"),
        (["method", "../x"], "is no name for a class"),
        (["split", "Class"], "a file cannot be called class.py"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], told: str) -> None:
    done = call("new", *words)
    assert done.exit_code == 2 and told in done.stderr and done.stderr.count("\n") == 1


def test_check_says_which_law_is_broken() -> None:
    Path("my.py").write_text(
        "from dataclasses import dataclass\n"
        "from idiolect.methods.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\n"
        "class Broken(FedAvg):\n"
        "    def fit(self, down, mine, local):\n"
        "        return {'model': nothing}, mine\n"
    )
    done = call("check", "my.py:Broken", "--json")
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)
    assert len(found) == 6 and not found[0]["holds"]
    assert "my.py:6: NameError" in found[0]["reason"]
    shown = call("check", "my.py:Broken")
    assert shown.exit_code == 1 and "does not hold" in shown.stdout
    done = call("check", "fedavgg")
    assert done.exit_code == 2 and "did you mean 'fedavg'" in done.stderr
