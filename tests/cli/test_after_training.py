"""`idiolect export`, `predict` and `adapt` on a small run."""

import csv
import importlib.util
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from idiolect.data import Federation
from idiolect.runs.build import load_federation
from idiolect.runs.directory import read_config
from tests.cli.calls import TINY, call


@pytest.fixture
def federation() -> Federation:
    assert call("run", "fedper", *TINY, "--out", "r").exit_code == 0
    return load_federation(read_config(Path("r")))


def test_export_writes_a_model_and_its_card(federation: Federation) -> None:
    result = call("export", "r", "--client", "1", "--licence", "MIT")
    assert result.exit_code == 0, result.output
    card = json.loads(Path("r/exports/client_0001/card.json").read_text())
    assert card["licence"] == "MIT" and card["client"]["id"] == 1
    assert f"{100 * card['metric']['value']:.1f} %" in result.stdout
    again = call("export", "r", "--client", "1", "--out", "elsewhere", "--json")
    assert json.loads(again.stdout)["metric"] == card["metric"]
    assert Path("elsewhere/model.safetensors").exists()
    assert call("report", "r").exit_code == 0  # an export is no part of the run


def test_export_replaces_no_other_model(federation: Federation) -> None:
    for _ in range(2):  # of the same run and client
        assert call("export", "r", "--client", "1", "--out", "model").exit_code == 0
    assert call("run", "fedper", *TINY, "--seed", "1", "--out", "s").exit_code == 0
    before = {path: path.read_bytes() for path in Path("model").iterdir()}
    for run, client in (("r", "2"), ("s", "1")):
        other = call("export", run, "--client", client, "--out", "model")
        assert other.exit_code == 2 and "another folder with --out" in other.stderr, other.output
        assert len(other.stderr.strip().splitlines()) == 1
    assert {path: path.read_bytes() for path in before} == before
    Path("notes").mkdir()
    Path("notes/model.onnx").write_text("mine")
    mine = call("export", "r", "--client", "1", "--out", "notes")
    assert mine.exit_code == 2 and "model.onnx is there" in mine.stderr, mine.output


def test_an_export_keeps_no_onnx_file_of_an_earlier_model(federation: Federation) -> None:
    """It would stand beside weights it does not have."""
    assert call("export", "r", "--client", "1", "--out", "model").exit_code == 0
    Path("model/model.onnx").write_text("of the round before")
    again = call("export", "r", "--client", "1", "--out", "model")
    assert again.exit_code == 0 and "model.onnx is deleted" in again.stderr, again.output
    assert not Path("model/model.onnx").exists()


def test_adapt_takes_no_export_of_a_client_for_a_newcomers_model(federation: Federation) -> None:
    """Also where the newcomer is called as the client is."""
    train, test = federation.train[0], federation.test[0]
    x, y = federation.x.numpy(), federation.y.numpy()
    np.savez("1.npz", x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])
    assert call("export", "r", "--client", "1", "--out", "model").exit_code == 0
    done = call("adapt", "r", "--data", "1.npz", "--out", "model")
    assert done.exit_code == 2 and "another folder with --out" in done.stderr, done.output


def test_export_names_what_onnx_needs(federation: Federation) -> None:
    result = call("export", "r", "--client", "0", "--onnx")
    if importlib.util.find_spec("onnx") and importlib.util.find_spec("onnxscript"):
        assert Path("r/exports/client_0000/model.onnx").exists()
    else:
        assert result.exit_code == 2 and "--onnx needs onnx" in result.stderr
        assert not Path("r/exports").exists()


def test_predict_answers_as_the_run_did(federation: Federation) -> None:
    rows = federation.test[2]
    np.savez("new.npz", x=federation.x[rows].numpy(), y=federation.y[rows].numpy())
    result = call("predict", "r", "--client", "2", "--data", "new.npz", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    table = pq.read_table("r/clients.parquet").to_pydict()
    reported = [
        value
        for value, client, round in zip(
            table["accuracy_before"], table["client"], table["round"], strict=True
        )
        if (client, round) == (2, 2)
    ]
    assert told["accuracy"] == pytest.approx(reported[0])
    lines = Path("new.predictions.csv").read_text().splitlines()
    assert len(lines) == 1 + len(rows) and lines[0].startswith('"row","class","probability","p0"')
    parquet = call("predict", "r", "--client", "2", "--data", "new.npz", "--out", "p.parquet")
    assert parquet.exit_code == 0, parquet.output
    found = pq.read_table("p.parquet").to_pydict()
    right = np.mean(np.array(found["class"]) == federation.y[rows].numpy())
    assert right == pytest.approx(told["accuracy"])
    wrong = call("predict", "r", "--client", "2", "--data", "new.npz", "--out", "p.txt")
    assert wrong.exit_code == 2 and ".csv or .parquet" in wrong.stderr


def test_adapt_states_the_gap(federation: Federation) -> None:
    train, test = federation.train[0], federation.test[0]
    x, y = federation.x.numpy(), federation.y.numpy()
    np.savez("ward.npz", x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])
    result = call("adapt", "r", "--data", "ward.npz")
    assert result.exit_code == 0, result.output
    assert "after one round of local work" in result.stdout and "the gap" in result.stdout
    card = json.loads(Path("ward.model/card.json").read_text())
    assert card["client"]["name"] == "ward" and card["newcomer"]["gives"] == "trained"
    assert card["metric"]["value"] == card["newcomer"]["trained"]
    again = call("adapt", "r", "--data", "ward.npz", "--client", "w", "--out", "w", "--json")
    assert json.loads(again.stdout) == card["newcomer"] | {"client": "w"}


def test_a_run_on_a_table_predicts_and_adapts_from_tables() -> None:
    rows = [f"s{k % 3},{('red', 'blue')[k % 2]},{k / 4},{('yes', 'no')[k % 2]}" for k in range(30)]
    Path("t.csv").write_text("\n".join(["client,colour,size,label", *rows]))
    words = ["--data", "t.csv", "--model", "tabular", "--rounds", "1", "--out", "t"]
    assert call("run", "fedper", *words).exit_code == 0
    Path("new.csv").write_text("size,colour\n1.5,red\n2.5,blue\n")
    done = call("predict", "t", "--client", "s1", "--data", "new.csv")
    assert done.exit_code == 0, done.output
    told = list(csv.DictReader(Path("new.predictions.csv").read_text().splitlines()))
    assert [one["name"] for one in told] == [("no", "yes")[int(one["class"])] for one in told]
    Path("s9.csv").write_text("\n".join(["client,colour,size,label", *rows[:8]]))
    done = call("adapt", "t", "--data", "s9.csv")
    assert done.exit_code == 0 and "s9: " in done.stdout, done.output
    assert Path("s9.model/model.safetensors").exists()
    assert call("export", "t", "--client", "s1").exit_code == 0
    card = json.loads(Path("t/exports/client_0001/card.json").read_text())
    coded = {"name": "colour", "values": ["blue", "red"]}
    assert card["input"]["columns"] == [coded, {"name": "size"}]
    assert json.loads(Path("s9.model/card.json").read_text())["input"] == card["input"]
    assert "| 0 | colour | 0 blue, 1 red |" in Path("t/exports/client_0001/README.md").read_text()


def test_a_folder_of_runs_names_them() -> None:
    for name in ("fedavg-seed0", "local-seed0"):
        Path("many", name).mkdir(parents=True)
        Path("many", name, "config.yaml").write_text("seed: 0")
    done = call("export", "many", "--client", "0")
    assert done.exit_code == 2 and "name one: fedavg-seed0, local-seed0" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "r", "--client", "7"], "give 0 to 3"),
        (["export", "nowhere", "--client", "0"], "is not a run"),
        (["predict", "r", "--client", "0", "--data", "no.npz"], "no file"),
        (["adapt", "r", "--data", "no.npz"], "no file"),
    ],
)
def test_a_mistake_is_one_line(federation: Federation, words: list[str], said: str) -> None:
    result = call(*words)
    assert result.exit_code == 2 and said in result.stderr, result.output
    assert len(result.stderr.strip().splitlines()) == 1


def test_predictions_replace_neither_data_nor_a_run() -> None:
    Path("t.csv").write_text("a,label,client\n" + "".join(f"{k},{k % 2},s\n" for k in range(20)))
    Path("new.csv").write_text("a\n1\n2\n")
    Path("link.csv").symlink_to("new.csv")
    words = ["--data", "t.csv", "--rounds", "1", "--model", "tabular", "--out", "t"]
    assert call("run", "fedper", *words).exit_code == 0
    files = [Path("t.csv"), Path("new.csv"), *Path("t").rglob("*.*")]
    before = {path: path.read_bytes() for path in files if path.is_file()}
    said = {"new.csv": "data", "link.csv": "data", "t.csv": "data", "t/../new.csv": "data",
            "t/clients.parquet": "a run (t)", "t/models/x.csv": "a run (t)"}  # fmt: skip
    for out, why in said.items():
        done = call("predict", "t", "--client", "s", "--data", "new.csv", "--out", out)
        assert done.exit_code == 2 and why in done.stderr, done.output
        assert len(done.stderr.strip().splitlines()) == 1
    assert {path: path.read_bytes() for path in before} == before
    Path("config.yaml").write_text("rounds: 1\n")  # settings that no run wrote
    for _ in range(2):
        done = call("predict", "t", "--client", "s", "--data", "new.csv", "--out", "said.csv")
        assert done.exit_code == 0, done.output


def test_adapt_replaces_no_model_of_another_client(federation: Federation) -> None:
    train, test = federation.train[0], federation.test[0]
    x, y = federation.x.numpy(), federation.y.numpy()
    np.savez("ward.npz", x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])
    for _ in range(2):  # of the same run and client
        assert call("adapt", "r", "--data", "ward.npz").exit_code == 0
    before = Path("ward.model/card.json").read_bytes()
    other = call("adapt", "r", "--data", "ward.npz", "--client", "w", "--out", "ward.model")
    assert other.exit_code == 2 and "another folder with --out" in other.stderr, other.output
    assert Path("ward.model/card.json").read_bytes() == before
    Path("notes").mkdir()
    Path("notes/README.md").write_text("mine")
    mine = call("adapt", "r", "--data", "ward.npz", "--out", "notes")
    assert mine.exit_code == 2 and "README.md is there" in mine.stderr, mine.output
    assert Path("notes/README.md").read_text() == "mine"
