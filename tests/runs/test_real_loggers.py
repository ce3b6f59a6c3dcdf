"""Rounds as TensorBoard, MLflow and Weights & Biases really keep them, read back; each where its
package is installed."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from idiolect import simulate
from idiolect.report.load import load
from idiolect.runs import tracking
from tests.cli.calls import call
from tests.conftest import SmallNet, ragged_federation

pytestmark = pytest.mark.filterwarnings("ignore")  # these packages warn about themselves
Series = list[tuple[int, float]]
NAME = "accuracy/mean"
WORDS = ["--clients", "4", "--model", "linear", "--rounds", "2"]


def resumed(out: Path, log: str) -> Series:
    """A run that was logged, cut and resumed; what its log must hold."""
    done = call("run", "fedavg", *WORDS, "--log", log, "--out", out, "--json")
    assert done.exit_code == 0 and "left out" not in done.stderr, done.output
    assert json.loads(done.stdout)["rounds"] == 2  # nothing else is printed there
    (out / "summary.json").unlink()
    again = call("resume", out)
    assert again.exit_code == 0 and "left out" not in again.stderr, again.output
    return [(event["round"], tracking.numbers(event)[NAME]) for event in load(out).events]


def close(found: Series, wanted: Series) -> None:
    assert [step for step, _ in found] == [step for step, _ in wanted]
    assert [v for _, v in found] == pytest.approx([v for _, v in wanted], rel=1e-6)


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    wanted = resumed(tmp_path / "r", "tensorboard")
    kept = EventAccumulator(str(tmp_path / "r/log/tensorboard"))
    kept.Reload()
    close([(one.step, one.value) for one in kept.Scalars(NAME)], wanted)


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("mlflow").MlflowClient
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    wanted = resumed(tmp_path / "r", "mlflow")
    kept = client(f"sqlite:///{tmp_path / 'mlflow.db'}")
    [run] = kept.search_runs([kept.get_experiment_by_name("idiolect").experiment_id])
    close([(one.step, one.value) for one in kept.get_metric_history(run.info.run_id, NAME)], wanted)
    assert run.info.status == "FINISHED" and run.data.params["method.name"] == "fedavg"
    # A store that does not know the run, as after a move, gets one.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'other.db'}")
    (tmp_path / "r/summary.json").unlink()
    assert call("resume", tmp_path / "r").exit_code == 0
    other = client(f"sqlite:///{tmp_path / 'other.db'}")
    assert len(other.search_runs([other.get_experiment_by_name("idiolect").experiment_id])) == 1


def test_wandb_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    wanted = resumed(tmp_path / "r", "wandb")
    kept = sorted((tmp_path / "r/log/wandb").glob("offline-run-*/*.wandb"))
    assert len(kept) == 2  # a resumed run begins another, with all rounds
    for file in kept:
        found = []
        for record in _records(file):
            if record.WhichOneof("record_type") == "history":
                items = {"/".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
                found.append((int(items["_step"]), float(items[NAME])))
        close(found, wanted)


def test_all_from_python(tmp_path: Path) -> None:
    for package in tracking.PACKAGES.values():
        pytest.importorskip(package)
    log = "csv,tensorboard,mlflow,wandb"
    simulate("fedavg", ragged_federation(), SmallNet(), rounds=1, out=tmp_path / "r", log=log)
    assert {one.name for one in (tmp_path / "r/log").iterdir()} == {
        *("rounds.csv", "tensorboard", "mlflow.json", "wandb")
    }


def _records(file: Path) -> Iterator[Any]:
    """The records of W&B's file: blocks of 32 KiB, each part with a checksum, a size and a kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # all of a record, or its last part
            record = Record()
            record.ParseFromString(whole)
            whole = b""
            yield record
