"""A metric of the user's own: a function of outputs and targets, under the rules of own code."""

import json
from pathlib import Path

import numpy as np
import pytest

from idiolect.core import task
from idiolect.report.load import load
from idiolect.runs import config as settings
from tests.cli.calls import call
from tests.trust.test_foreign_code import refused, unfinished

CODE = """
from pathlib import Path
Path({mark!r}).touch()

def far(outputs, targets):
    return (outputs - targets).abs().amax(1) > 0.5

far.lower_is_better = True

def near(outputs, targets):
    return (outputs - targets).abs().amax(1) <= 0.5

def rmse(outputs, targets):
    return (outputs - targets).abs()[:, 0]

def whole(outputs, targets):
    return outputs.mean()

def failing(outputs, targets):
    return outputs[targets.missing]
"""
WORDS = ["--data", "t.csv", "--task", "regression", "--model", "linear", "--rounds", "2"]


@pytest.fixture(autouse=True)
def mark(tmp_path: Path) -> Path:
    """Is there once the code has run."""
    made = tmp_path / "the code ran"
    Path("my.py").write_text(CODE.format(mark=str(made)))
    draw = np.random.default_rng(0)
    pairs = enumerate(draw.normal(size=(60, 2)))
    rows = [f"{a:.3f},{b:.3f},{a - b:.3f},s{i % 3}" for i, (a, b) in pairs]
    Path("t.csv").write_text("\n".join(["a,b,label,client", *rows]))
    return made


def test_an_own_metric_judges_and_is_read_without_its_code(mark: Path) -> None:
    for name in ("far", "near"):
        done = call("run", "fedavg", *WORDS, "--metric", f"my.py:{name}", "--out", name, "--json")
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        better = "lower" if name == "far" else "higher"
        assert found["metric"] == {"name": name, "better": better}
    assert settings.read_yaml(Path("far/config.yaml"))["data"]["metric"].endswith("my.py:far")
    far, near = (load(name).table for name in ("far", "near"))
    np.testing.assert_allclose(far["far_before"] + near["near_before"], 1)
    assert call("resume", unfinished("far")).exit_code == 0
    mark.unlink()
    task.OWN_METRICS.clear()
    rows = json.loads(call("report", "far", "--json").stdout)
    assert rows[0]["metric"] == "far" and not mark.exists()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("rmse", "has the name of one that Idiolect has"),
        ("whole", "one value per sample, got ()"),
        ("failing", "your own code failed at"),
        ("Path", "is no function"),
        ("nothing", "cannot import metric"),
    ],
)
def test_what_is_wrong_with_it_is_one_line(name: str, told: str) -> None:
    refused(call("run", "fedavg", *WORDS, "--metric", f"my.py:{name}"), told)


def test_a_config_file_loads_nothing(mark: Path) -> None:
    data = "data: {name: t.csv, task: regression, metric: 'my.py:far'}\nmodel: linear\nrounds: 1\n"
    Path("c.yaml").write_text(data)
    words = ["run", "fedavg", "--config", "c.yaml", "--out", "r"]
    refused(call(*words), "data.metric of c.yaml names code", "--allow-code")
    assert not mark.exists()
    assert call(*words, "--allow-code", "my.py:far").exit_code == 0
