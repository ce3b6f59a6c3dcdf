"""A metric of the user's own: a function of outputs and targets, under the rules of own code."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import idiolect
from idiolect.core import task
from idiolect.data import Federation
from idiolect.errors import UserError
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

def loss(outputs, targets):
    return (outputs - targets).abs()[:, 0]

def whole(outputs, targets):
    return outputs.mean()

def sure(outputs, targets):
    return outputs.softmax(1).amax(1)

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


def test_named_datasets_and_functions_are_judged_by_it_too() -> None:
    Path("clients.py").write_text(
        "import numpy as np\n"
        "def two():\n"
        "    x, y = np.eye(4, dtype='float32'), np.arange(4)\n"
        "    return [dict(x_train=x, y_train=y, x_test=x, y_test=y)] * 2\n"
    )
    for number, data in enumerate((["--clients", "3"], ["--data", "clients.py:two"])):
        words = [*data, "--model", "linear", "--rounds", "1", "--json"]
        for metric, name in (("my.py:sure", "sure"), ("macro_f1", "macro_f1")):
            done = call("run", "fedavg", *words, "--metric", metric, "--out", f"{number}-{name}")
            assert done.exit_code == 0, done.output
            assert json.loads(done.stdout)["metric"]["name"] == name
            assert f"{name}_before" in load(f"{number}-{name}").table
    assert call("resume", unfinished("0-sure")).exit_code == 0
    refused(call("run", "fedavg", "--metric", "rmse"), "is not for classification; use accuracy")


def test_from_python_it_is_a_function() -> None:
    def first(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs.argmax(1) == 0

    x, y = np.eye(4, dtype=np.float32), np.arange(4)
    given = [{"x_train": x, "y_train": y, "x_test": x, "y_test": y}] * 2
    clients = Federation.from_arrays(given)
    model = torch.nn.Linear(4, 4)
    done = idiolect.simulate("fedavg", clients.judged_by(first), model, rounds=1)
    assert done.summary["metric"]["name"] == "first" and done.accuracy().shape == (2, 2)
    with pytest.raises(UserError, match="write it with def"):
        clients.judged_by(lambda outputs, targets: targets)
    with pytest.raises(UserError, match="is not for classification"):
        clients.judged_by("rmse")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("rmse", "has the name of one that Idiolect has"),
        ("loss", "has the name of another column of tables"),
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
