"""Rounds shown besides: the CSV file truly, the others by stand-ins for their packages
(test_real_loggers.py has the packages)."""

import csv
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from idiolect import simulate
from idiolect.errors import UserError
from idiolect.report.load import load
from idiolect.runs import config as settings
from idiolect.runs import tracking
from idiolect.runs.execute import execute
from tests.cli.calls import TINY, call
from tests.conftest import SmallNet, ragged_federation
from tests.runs.fake_simulation import build, resolved

EVENT = {
    "round": 3,
    "time": 1.0,
    "metric": {"name": "rmse", "better": "lower"},
    "accuracy": {"mean": 0.5, "worst": None},
    "train_loss": None,
    "diverged": False,
    "started": [0, 2],
    "bytes_up": 8,
    "measured": {"flops": 2.0, "gradient_similarity": {"head": 1.0}},
}


def test_the_numbers_of_a_round() -> None:
    assert tracking.numbers(EVENT) == {
        "rmse/mean": 0.5,
        "clients/started": 2,
        "bytes_up": 8,
        "measured/flops": 2.0,
    }


def rows(out: Path) -> list[dict[str, str]]:
    with (out / "log" / "rounds.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_holds_what_the_run_holds_also_after_a_resume(tmp_path: Path) -> None:
    out = tmp_path / "r"
    words = ["--clients", "4", "--model", "linear", "--rounds", "3", "--eval-every", "2"]
    done = call("run", "fedavg", *words, "--log", "csv", "--out", out)
    assert done.exit_code == 0, done.output
    found, events = rows(out), load(out).events
    assert [int(row["round"]) for row in found] == [0, 1, 2, 3]
    for row, event in zip(found, events, strict=True):
        assert {n: float(v) for n, v in row.items() if v and n != "round"} == pytest.approx(
            tracking.numbers(event)
        )
    (out / "summary.json").unlink()
    with (out / "log" / "rounds.csv").open("a") as file:
        file.write("9,cut short")
    assert call("resume", out).exit_code == 0
    assert [row["round"] for row in rows(out)] == ["0", "1", "2", "3"]
    assert call("run", "fedavg", *TINY, "--log", "cvs").exit_code == 2


def test_from_python(tmp_path: Path) -> None:
    simulate("fedavg", ragged_federation(), SmallNet(), rounds=1, out=tmp_path / "r", log="csv")
    assert len(rows(tmp_path / "r")) == 2
    with pytest.raises(UserError, match="give out="):
        simulate("fedavg", ragged_federation(), SmallNet(), rounds=1, log="csv")


def test_who_is_shown_the_rounds_is_no_part_of_a_run() -> None:
    made = settings.resolve(flags={"method": "fedavg"})
    other = settings.resolve(flags={"method": "fedavg", "log": "csv,wandb"})
    assert other["log"] == {"csv": True, "wandb": True}
    assert settings.digest(made) == settings.digest(other)
    assert settings.changed_keys(made, other) == {}


@pytest.mark.parametrize("name", tracking.PACKAGES)
def test_a_missing_package_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda package: None)
    done = call("run", "fedavg", *TINY, "--log", name, "--out", tmp_path / "r")
    assert done.exit_code == 2 and "pip install 'idiolect[tracking]'" in done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "r").exists()


class StandIn:
    """Takes the place of all three packages: it notes every call."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def module(self, name: str, **members: Any) -> ModuleType:
        made = ModuleType(name)
        vars(made).update(members)
        return made

    def __call__(self, *words: Any, **options: Any) -> "StandIn":
        self.seen.append(("opened", *words, options))
        return self

    def __getattr__(self, name: str) -> Any:
        def note(*words: Any, **options: Any) -> Any:
            self.seen.append((name, *words, options))
            run = SimpleNamespace(
                info=SimpleNamespace(run_id="r1"), data=SimpleNamespace(metrics={})
            )
            return {"create_run": run, "get_run": run, "create_experiment": "e1"}.get(name)

        return note


def test_the_others_get_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board, flow, wb = StandIn(), StandIn(), StandIn()
    fakes = {
        "torch.utils.tensorboard": board.module("t", SummaryWriter=board),
        "mlflow": flow.module("mlflow", MlflowClient=flow),
        "wandb": wb.module("wandb", init=wb, Settings=dict),
    }
    for name, module in fakes.items():
        monkeypatch.setitem(sys.modules, name, module)
    config = settings.resolve(flags={"method": "fedavg", "log": "tensorboard,mlflow,wandb"})
    sinks = tracking.Sinks(tmp_path / "r", config, [EVENT], pytest.fail)
    sinks.round({"round": 4, "loss": 1.5})
    sinks.close()
    assert ("add_scalar", "rmse/mean", 0.5, 3, {}) in board.seen
    assert ("add_scalar", "loss", 1.5, 4, {}) in board.seen and board.seen[-1][0] == "close"
    assert flow.seen[0][1] == f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert ("log_param", "r1", "method.name", "fedavg", {}) in flow.seen
    assert ("log_metric", "r1", "loss", 1.5, {"step": 4}) in flow.seen
    assert flow.seen[-1] == ("set_terminated", "r1", {})
    assert wb.seen[0][1]["mode"] == "offline" and wb.seen[0][1]["config"]["method.name"] == "fedavg"
    assert ("log", {"loss": 1.5}, {"step": 4}) in wb.seen and wb.seen[-1][0] == "finish"
    count = len(flow.seen)
    tracking.Mlflow(tmp_path / "r" / "log", config)  # resumed: the same run of MLflow
    assert [call[0] for call in flow.seen[count:]] == ["opened", "get_run", "update_run"]


def test_one_that_fails_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(tracking.CsvFile):
        def round(self, number: int, values: Any) -> None:
            raise RuntimeError("the server is gone")

    monkeypatch.setitem(tracking.SINKS, "wandb", Failing)
    monkeypatch.setattr(tracking, "find_spec", lambda package: "there")
    done = call("run", "fedavg", *TINY, "--log", "wandb,csv", "--out", tmp_path / "r")
    assert done.exit_code == 0, done.output
    assert done.stderr.count("log wandb is left out, it failed: the server is gone") == 1
    assert len(rows(tmp_path / "r")) == 3


def test_a_run_that_begins_again_is_shown_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: what was shown of the run before stays with it."""
    opened: list[list[int]] = []

    class Shown:
        def __init__(self, folder: Path, config: Any) -> None:
            opened.append([])
            (folder / "mine").touch(exist_ok=False)

        def round(self, number: int, values: Any) -> None:
            opened[-1].append(number)

        def close(self) -> None: ...

    monkeypatch.setitem(tracking.SINKS, "csv", Shown)
    config = resolved(rounds=2, log="csv")
    execute(config, tmp_path, build=build)
    execute(config, tmp_path, resume=True, build=build, from_start=True)
    assert opened == [[0, 1, 2], [0, 1, 2]]
    assert (tmp_path / "earlier-1" / "log" / "mine").exists()
