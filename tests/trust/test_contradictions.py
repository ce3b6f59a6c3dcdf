"""Two values for one setting are an error, and a run goes on with the settings it began with."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from idiolect.data.datasets.digits import Digits
from idiolect.runs import build, directory
from idiolect.runs import config as settings
from tests.cli.calls import TINY, call

SMALL = ["--clients", "4", "--rounds", "2", "--model", "linear"]


@pytest.mark.parametrize(
    ("words", "both"),
    [
        (["compare", "local", "fedavg", "--seeds", "0,1,2", "--set", "seed=5"], "--seeds 0,1,2"),
        (["compare", "local", "fedavg", "--seeds", "0,1,2", "--seed", "5"], "--seeds 0,1,2"),
        (["compare", "local", "fedavg", "--seeds", "0,1", "--set", "seed=0"], "--seeds 0,1"),
        (["compare", "fedavg", "--seed", "4", "--set", "seed=5"], "--seed 4 and --set seed=5"),
        (["compare", "fedavg", "fedper", "--set", "method=local"], "--set method=local"),
        (["compare", "fedavg", "--set", "method.name=local"], "--set method.name=local"),
        (["compare", "fedprox", "--sweep", "mu=1,2", "--set", "method.mu=3"], "--sweep"),
        (["compare", "fedprox", "--sweep", "mu=1,2", "--set", "fedprox.mu=1"], "--sweep"),
        (["compare", "fedprox", "--sweep", "fedprox.mu=1,2", "--set", "method.mu=3"], "--sweep"),
        (["run", "fedavg", "--set", "method=local"], "method fedavg and --set method=local"),
        (["run", "fedavg", "--seed", "0", "--set", "seed=1"], "--seed 0 and --set seed=1"),
        (["run", "fedavg", "--set", "seed=1", "--set", "seed=2"], "--set seed=1 and --set seed=2"),
        (["run", "fedavg", "--set", "split.clients=9"], "--clients 4 and --set split.clients=9"),
        (["run", "fedavg", "--split", "iid", "--set", "split=shards"], "--split iid"),
        (["run", "fedavg", "--set", "model.name=mlp"], "--model linear and --set model.name=mlp"),
        (["run", "fedavg", "--stragglers", "2", "--set", "stragglers.count=1"], "stragglers"),
        (["run", "fedavg", "--participation", "0.5", "--set", "participation=0.6"], "--set"),
        (["compare", "fedavg", "local", "--set", "fedas.lr=0.1"], "fedas is not compared"),
    ],
)
def test_a_contradiction_is_one_line(words: list[str], both: str) -> None:
    result = call(*words, *SMALL, "--out", "r")
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert both in result.stderr
    assert not Path("r").exists()


def test_what_agrees_is_no_contradiction() -> None:
    words = ["run", "fedavg", *SMALL, "--seed", "3", "--set", "seed=3", "--set", "split.clients=4"]
    words += ["--participation", "0.5", "--set", "participation.kind=binomial", "--out", "r"]
    assert call(*words).exit_code == 0
    assert directory.read_config(Path("r"))["participation"] == {"kind": "binomial", "rate": 0.5}


@pytest.mark.parametrize("how", [["--set", "seed=5"], ["--seed", "5"], ["--config", "c.yaml"]])
def test_a_comparison_has_the_seed_it_was_given(how: list[str]) -> None:
    Path("c.yaml").write_text("seed: 5\n")
    assert call("compare", "fedavg", *SMALL, *how, "--out", "c").exit_code == 0
    assert directory.read_config(Path("c/fedavg-seed5"))["seed"] == 5
    assert not Path("c/fedavg-seed0").exists()


def test_what_is_said_for_one_method_comes_before_what_is_said_for_all() -> None:
    words = ["compare", "fedavg", "fedprox", *SMALL, "--out", "c"]
    words += ["--set", "fedprox.lr=0.1", "--set", "method.lr=0.2"]
    assert call(*words).exit_code == 0
    lr = {n: directory.read_config(Path(f"c/{n}-seed0"))["method"]["lr"] for n in words[1:3]}
    assert lr == {"fedavg": 0.2, "fedprox": 0.1}


@pytest.mark.filterwarnings("always:.*same run")
def test_a_run_is_counted_once() -> None:
    assert call("run", "fedavg", *TINY, "--out", "a").exit_code == 0
    assert call("run", "fedavg", *TINY, "--seed", "1", "--out", "runs/b").exit_code == 0
    Path("link").symlink_to("a")
    for again in ("a", "./a", str(Path("a").absolute()), "link", "runs/../a"):
        result = call("report", "a", again, "--json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)[0]["seeds"] == [0]
        assert "same run" in result.stderr and "counted once" in result.stderr
    both = call("report", "runs", "a", "runs/b", "--json")
    assert json.loads(both.stdout)[0]["seeds"] == [0, 1] and both.stderr.count("same run") == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [("seed", 7), ("method.lr", 0.5), ("method.name", "local"), ("rounds", 9), ("model", "mlp")],
)
def test_an_edited_config_is_refused_with_its_keys(key: str, value: object) -> None:
    assert call("run", "fedavg", *TINY, "--out", "r").exit_code == 0
    Path("r/summary.json").unlink()
    file = Path("r/config.yaml")
    before = {name: path.read_bytes() for name, path in _files("r").items()}
    config = yaml.safe_load(file.read_text())
    section, dot, inner = key.partition(".")
    config[section] = {**config[section], inner: value} if dot else value
    file.write_text(yaml.safe_dump(config))
    result = call("resume", "r")
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert f"r/config.yaml was edited since the run started: {key}" in result.stderr
    before["config.yaml"] = file.read_bytes()
    assert {name: path.read_bytes() for name, path in _files("r").items()} == before


def test_where_clients_are_kept_may_be_changed() -> None:
    assert call("run", "fedavg", *TINY, "--out", "r").exit_code == 0
    Path("r/summary.json").unlink()
    text = Path("r/config.yaml").read_text()
    Path("r/config.yaml").write_text(text.replace("keep: auto", "keep: disk"))
    assert call("resume", "r").exit_code == 0


def test_a_run_without_a_seal_goes_on_with_a_line() -> None:
    assert call("run", "fedavg", *TINY, "--out", "r").exit_code == 0
    Path("r/summary.json").unlink()
    Path("r/seal.json").unlink()
    result = call("resume", "r")
    assert result.exit_code == 0 and "r has no seal.json" in result.stderr
    Path("r/summary.json").unlink()
    Path("r/seal.json").write_text("{")
    damaged = call("resume", "r")
    assert damaged.exit_code == 2 and "seal.json is damaged" in damaged.stderr


def test_changed_data_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("run", "fedavg", *TINY, "--out", "r").exit_code == 0
    Path("r/summary.json").unlink()
    shutil.copytree("r", "same")
    load = Digits.load

    def other(self):
        pool = load(self)
        x = pool.x.copy()
        x[17, 0, 3, 3] += 1
        return type(pool)(**{**vars(pool), "x": x})

    build._federation.cache_clear()
    assert call("resume", "same").exit_code == 0
    build._federation.cache_clear()
    monkeypatch.setattr(Digits, "load", other)
    result = call("resume", "r")
    build._federation.cache_clear()
    assert result.exit_code == 2, result.output
    assert "data: digits changed since the run started" in result.stderr


def _files(folder: str) -> dict[str, Path]:
    return {
        str(path.relative_to(folder)): path for path in Path(folder).rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("key", ["seed", "method", "rounds", "save_models"])
def test_a_config_that_lost_a_key_is_refused(key: str) -> None:
    assert call("run", "fedavg", *TINY, "--out", "r").exit_code == 0
    Path("r/summary.json").unlink()
    config = directory.read_config(Path("r"))
    del config[key]
    Path("r/config.yaml").write_text(settings.dump(config))
    sealed = call("resume", "r")
    assert sealed.exit_code == 2 and "was edited" in sealed.stderr and key in sealed.stderr
    Path("r/seal.json").unlink()
    result = call("resume", "r")
    assert result.exit_code == 2 and f"r/config.yaml lacks '{key}'" in result.stderr
