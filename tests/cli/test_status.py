"""`idiolect status`: runs and sites as their folders tell."""

import json
from pathlib import Path
from typing import Any

import pytest

from idiolect.cli import status
from idiolect.deploy.client_registry import ClientRegistry
from idiolect.deploy.terms import FederationTerms
from idiolect.ui.run_index import RunEntry
from tests.cli.calls import call
from tests.ui.pages import going_run, small_run, some_runs


def federation(run: Path, clients: int = 3, minimum: int = 2) -> ClientRegistry:
    (run / "flower").mkdir(parents=True, exist_ok=True)
    terms = FederationTerms("aa", clients, minimum).as_dict()
    (run / "flower/terms.json").write_text(json.dumps(terms))
    return ClientRegistry(run / "flower/journal.jsonl")


def test_runs_of_a_folder_newest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some_runs(tmp_path / "runs", ("local", "fedavg"))
    (tmp_path / "runs/broken").mkdir()
    (tmp_path / "runs/broken/config.yaml").write_text("method: [")
    shown = call("status", tmp_path / "runs").stdout
    rows = [line.split() for line in shown.splitlines() if "seed0" in line]
    assert [row[0] for row in rows] == ["fedavg-seed0", "local-seed0"] and "finished" in rows[0]
    assert "problem: " in shown and "config.yaml" in shown
    told = json.loads(call("status", tmp_path / "runs", "--json").stdout)
    assert {run["state"] for run in told} == {"finished", "problem"} and len(told) == 3
    monkeypatch.setattr(status, "MOST_RUNS", 1)
    assert "and 2 older" in call("status", tmp_path / "runs").stdout


def test_one_run(tmp_path: Path) -> None:
    run = small_run(tmp_path / "one")
    shown = call("status", run).stdout
    assert "one: finished" in shown and "round 3 of 3" in shown and "site" not in shown
    told = json.loads(call("status", run, "--json").stdout)
    assert told["round"] == 3 and told["id"] == str(run) and "sites" not in told


def test_a_file_that_is_read_in_parts_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run(tmp_path / "sites")
    (run / "summary.json").unlink()
    federation(run)
    longest = max(map(len, (run / "events.jsonl").read_bytes().splitlines(keepends=True)))
    monkeypatch.setattr("idiolect.ui.event_tail.LARGEST_READ", longest)
    told = json.loads(call("status", run, "--json").stdout)
    assert told["round"] == 3 and max(site["round"] for site in told["sites"]) == 3
    assert json.loads(call("status", tmp_path, "--json").stdout)[0]["round"] == 3


def test_a_run_that_goes_is_watched_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "EVERY", 0.1)
    with going_run(tmp_path / "going", 30, 0.05):
        assert json.loads(call("status", tmp_path / "going", "--json").stdout)["state"] == "running"
        watched = call("status", tmp_path / "going", "--watch")
    assert watched.exit_code == 0 and "round 30 of 30" in watched.stdout


def test_a_federation_that_waits_for_its_sites(tmp_path: Path) -> None:
    registry = federation(tmp_path / "sites")
    registry.note("enrolled", client=1, name="Ulm\x1b[2J", node="11")
    shown = call("status", tmp_path / "sites").stdout
    assert "waits for its first sites; it begins with 2" in shown and "1 of 3 sites" in shown
    assert r"Ulm\x1b" in shown and "\x1b" not in shown
    told: dict[str, Any] = {"state": "failed", "reason": "no clients within 9 s", "time": 1.0}
    (tmp_path / "sites/flower/status.json").write_text(json.dumps(told))
    assert "stopped: no clients within 9 s" in call("status", tmp_path / "sites").stdout


def test_the_sites_of_a_federation(tmp_path: Path) -> None:
    run = small_run(tmp_path / "sites")
    registry = federation(run)
    registry.note("enrolled", client=0, name="Ulm", node="11")
    registry.note("enrolled", client=1, name="Bonn", node="12")
    registry.note("refused", kind="train", client=1, node="12", reason="not finite")
    registry.note("lost", kind="fit", client=1, node="12", reason="no answer within 9 s")
    registry.note("asked again", kind="hello", client=-1, node="13", reason="no answer yet")
    shown = call("status", run).stdout
    assert shown.splitlines()[-1].endswith("asked again  no answer yet")  # of no site -1
    ulm, bonn = (next(x for x in shown.splitlines() if name in x) for name in ("Ulm", "Bonn"))
    assert " here " in ulm and " lost " in bonn and "lost: no answer within 9 s" in bonn
    assert "refused" in shown.splitlines()[-3] and "not finite" in shown.splitlines()[-3]
    told = json.loads(call("status", run, "--json").stdout)
    assert told["clients"] == 3 and told["state"] == "finished"
    assert [site["refused"] for site in told["sites"]][:2] == [0, 1]


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_a_narrow_window_has_a_line_per_run_and_names_that_differ(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    made = [small_run(tmp_path / f"runs/fedavg-hospital-admissions-natural-seed{k}") for k in "12"]
    shown = call("status", tmp_path / "runs").stdout.splitlines()
    rows = [line for line in shown if "finished" in line]
    assert len(rows) == len({row.split()[0] for row in rows}) == len(made), shown
    assert all(len(line) <= width for line in shown)
    (tmp_path / "runs/broken").mkdir()
    (tmp_path / "runs/broken/config.yaml").write_text("method: [")
    again = call("status", tmp_path / "runs").stdout.splitlines()
    assert sum("finished" in line for line in again) == len(made), again
    assert any("not shown in this width" in line for line in shown) == (width < 100)


def test_sites_in_a_narrow_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    run = small_run(tmp_path / "sites")
    registry = federation(run)
    for k, name in enumerate(("University hospital of Ulm", "University hospital of Bonn")):
        registry.note("enrolled", client=k, name=name, node=f"1{k}")
    shown = call("status", run).stdout.splitlines()
    rows = [line for line in shown if " here" in line and line.split()[0].isdigit()]
    assert len(rows) == 6 and all(len(line) <= 70 for line in rows), shown
    assert any("Ulm" in line for line in shown) and any("Bonn" in line for line in shown)
    assert any("not shown in this width: " in line for line in shown)


def test_a_score_has_the_name_of_its_metric_unless_it_is_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run(tmp_path / "runs/one")
    assert "auc" not in call("status", tmp_path / "runs").stdout
    assert ", accuracy " in call("status", run).stdout
    read = RunEntry.__getattribute__
    monkeypatch.setattr(
        RunEntry, "__getattribute__", lambda me, key: "auc" if key == "metric" else read(me, key)
    )
    assert " % auc " in call("status", tmp_path / "runs").stdout
    one = call("status", run).stdout
    assert " % auc," in one and "accuracy" not in one


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("nowhere",), "nowhere is no folder"),
        ((".",), "no runs in ."),
        (("broken",), "broken: "),
        ((".", "--watch", "--json"), "leave out --watch or --json"),
    ],
)
def test_mistakes_are_one_line(
    words: tuple[str, ...], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "broken" in words:
        Path("broken").mkdir()
        Path("broken/config.yaml").write_text("method: [")
    result = call("status", *words)
    assert result.exit_code == 2 and result.stderr.startswith("error: ") and line in result.stderr
    assert result.stderr.count("\n") == 1
