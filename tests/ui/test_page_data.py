"""What the live page gives to a browser: runs, reports, clients, matrices, changes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the page needs starlette: pip install 'idiolect[ui]'")
httpx = pytest.importorskip("httpx")

from idiolect.runs.execute import execute
from idiolect.ui import run_index
from idiolect.ui.web import Page
from tests.runs.fake_simulation import resolved
from tests.ui.pages import Errors, asking, going_run, served, small_run, some_runs, wait_until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return some_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def browser(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with asking(folder, tmp_path_factory.mktemp("logs")) as client:
        yield client


def test_runs_are_listed_with_what_they_are(browser: Any) -> None:
    found = browser.get("/api/runs", params={"sort": "name"}).json()
    assert found["total"] == 3
    assert [run["id"] for run in found["runs"]] == ["fedavg-seed0", "fedper-seed0", "local-seed0"]
    first = found["runs"][0]
    assert first["state"] == "finished" and first["method"] == "fedavg" and first["round"] == 4
    assert 0 < first["accuracy"] < 1


def test_search_states_and_order(browser: Any) -> None:
    def ids(**asked: str) -> list[str]:
        return [run["id"] for run in browser.get("/api/runs", params=asked).json()["runs"]]

    assert ids(query="PER digits") == ["fedper-seed0"]
    assert ids(query="nothing like it") == []
    assert ids(state="running") == [] and len(ids(state="finished")) == 3
    down, up = ids(sort="accuracy"), ids(sort="accuracy", down="1")
    assert down == up[::-1] and down[0] == "fedavg-seed0"
    assert len(ids(sort="no such order")) == 3


def test_lists_come_in_pages(tmp_path: Path) -> None:
    for number in range(105):
        (tmp_path / f"run{number:03}").mkdir()
        (tmp_path / f"run{number:03}" / "config.yaml").write_text("{}")
    with asking(tmp_path, tmp_path / ".logs") as browser:
        first = browser.get("/api/runs", params={"sort": "name"}).json()
        rest = browser.get("/api/runs", params={"sort": "name", "offset": "100"}).json()
        assert first["total"] == 105 and len(first["runs"]) == 100 and len(rest["runs"]) == 5
        assert browser.get("/api/runs", params={"offset": "-1"}).status_code == 400


def test_a_report_of_one_and_of_several_runs(browser: Any) -> None:
    one = browser.get("/api/report", params={"run": "fedavg-seed0"}).json()
    assert "Accuracy over rounds" in one["html"] and len(one["figures"]) >= 3
    assert one["clients"]["client"] == [0, 1, 2, 3, 4, 5]
    assert {"name": "similarity", "rounds": [1, 2, 3, 4]} in one["matrices"]
    several = browser.get(
        "/api/report", params=[("run", f"{name}-seed0") for name in ("local", "fedavg", "fedper")]
    ).json()
    assert len(several["runs"]) == 3 and several["clients"] is None
    assert "Who gains" in several["html"]


def test_one_client_over_the_rounds(browser: Any) -> None:
    asked = {"run": "fedavg-seed0", "client": "2"}
    found = browser.get("/api/client", params=asked).json()
    assert found["metric"] == {"name": "accuracy", "share": True}
    rounds = found["rounds"]
    assert rounds["round"] == [0, 1, 2, 3, 4] and len(rounds["accuracy_before"]) == 5
    assert rounds["accuracy_after"][0] is None
    for wrong in ("99", "-1", "x", ""):
        answer = browser.get("/api/client", params={**asked, "client": wrong})
        assert answer.status_code == 400 and "client" in answer.json()["error"]


def test_one_matrix_of_one_round(browser: Any) -> None:
    asked = {"run": "fedavg-seed0", "name": "similarity", "round": "3"}
    found = browser.get("/api/matrix", params=asked).json()
    assert found["size"] == [6, 6] and len(found["values"]) == 6
    assert found["clients"] == list(range(6)) and "order" not in found
    ordered = browser.get("/api/matrix", params={**asked, "order": "1"}).json()
    assert sorted(ordered["order"]) == list(range(6))
    earlier = browser.get("/api/matrix", params={**asked, "round": "1"}).json()
    assert earlier["values"] != found["values"]
    for wrong in ({"round": "9"}, {"name": "<b>"}, {"round": "1e3"}):
        assert browser.get("/api/matrix", params={**asked, **wrong}).status_code == 400


def test_too_many_or_no_runs_are_refused(browser: Any) -> None:
    assert browser.get("/api/report").status_code == 400
    many = [("run", f"run{number}") for number in range(61)]
    assert browser.get("/api/report", params=many).status_code == 400
    gone = browser.get("/api/report", params={"run": "gone"})
    assert gone.status_code == 400 and gone.json()["error"].startswith("no run 'gone'")


def test_two_open_pages_hear_of_the_same_change(tmp_path: Path) -> None:
    """What one stream was told must not be lost to the other."""
    page = Page(tmp_path, tmp_path / ".logs")
    before = page.index.version
    small_run(tmp_path / "new")
    page.index.refresh(force=True)
    page.index.refresh(force=True)
    for _ in range(2):
        _, changed = page.index.changes(before)
        assert changed == ["new"]
    assert page.index.changes(page.index.version)[1] == []


def test_a_run_that_does_not_change_is_not_told_again(tmp_path: Path) -> None:
    small_run(tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()
    page = Page(tmp_path, tmp_path / ".logs")
    page.index.read_some()
    assert page.index.entries["run"].state == "stopped"
    version = page.index.version
    for _ in range(3):
        page.index.refresh(force=True)
    assert page.index.changes(version)[1] == []


def test_the_stream_tells_rounds_of_a_going_run(tmp_path: Path) -> None:
    with (
        served(tmp_path, tmp_path / ".logs") as (address, _),
        going_run(tmp_path / "run", 400, 0.05),
        httpx.stream("GET", f"{address}/api/stream", timeout=60) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        rounds = []
        for line in answer.iter_lines():
            if line.startswith("data: "):
                told = json.loads(line.removeprefix("data: "))["runs"]
                rounds += [run["round"] for run in told if run["state"] == "running"]
            if len(rounds) == 3:
                break
    assert rounds == sorted(rounds) and rounds[0] < rounds[-1]


def test_eta_and_progress_of_a_going_run(tmp_path: Path) -> None:
    with going_run(tmp_path / "run", 400, 0.05):
        page = Page(tmp_path, tmp_path / ".logs")

        def entry() -> Any:
            page.index.refresh(force=True)
            page.index.read_some()
            found = page.index.entries["run"]
            return found if found.round > 2 else None

        found = wait_until(entry)
        assert found.state == "running" and found.rounds == 400 and found.eta > 0


def test_time_to_go_is_by_the_clock() -> None:
    """A run of a stack has a part of its seconds; a pause is no round's work."""
    assert run_index._pace([0.0, 10.0, 20.0, 5000.0, 5010.0]) == 10.0
    assert run_index._pace([5.0]) is None


def test_a_run_is_read_again_only_when_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from idiolect.ui import views

    read: list[Path] = []
    real = views.load
    monkeypatch.setattr(views, "load", lambda path: read.append(path) or real(path))
    run = small_run(tmp_path / "run")
    for number in (0, 1, 2):
        views.one_client(run, number)
    assert len(read) == 1
    (run / "summary.json").unlink()
    views.one_client(run, 0)
    assert len(read) == 2
    with (run / "events.jsonl").open("ab") as file:
        file.write(b"{")
    views.one_client(run, 0)
    assert len(read) == 3


def test_tags_are_kept_searched_and_told_to_every_page(tmp_path: Path) -> None:
    for name in ("one", "two"):
        small_run(tmp_path / name)
    with served(tmp_path, tmp_path / ".logs") as (address, page):

        def tag(text: str, run: str = "one") -> Any:
            asked = {"run": run, "tags": text}
            key = {"x-idiolect": page.key}
            return httpx.post(f"{address}/api/tags", params=asked, headers=key)

        def ids(query: str) -> list[str]:
            found = httpx.get(f"{address}/api/runs", params={"query": query}).json()["runs"]
            return [run["id"] for run in found]

        assert sorted(ids("")) == ["one", "two"]
        version = page.index.version
        assert tag(" paper, first  try,paper,,").json() == {"tags": ["paper", "first-try"]}
        assert page.index.changes(version)[1] == ["one"]
        assert ids("tag:paper") == ["one"] == ids("first-try") and ids("tag:pap") == []
        assert json.loads((tmp_path / "one/tags.json").read_text()) == ["paper", "first-try"]
        assert (
            tag("x" * 50).status_code == 400 and tag(",".join("abcdefghijklmnopqrstuvw")).is_error
        )
        assert tag("y", "three").status_code == 400
        refused = httpx.post(f"{address}/api/tags", params={"run": "one", "tags": "z"})
        assert refused.status_code == 403 and ids("tag:paper") == ["one"]
    fresh = Page(tmp_path, tmp_path / ".logs")
    fresh.index.read_some()
    assert fresh.index.entries["one"].tags == ["paper", "first-try"]
    (tmp_path / "two/tags.json").write_text('["<b>\\u001b", 3]')
    (tmp_path / "one/tags.json").write_text("{" * 99)
    other = Page(tmp_path, tmp_path / ".logs")
    other.index.read_some()
    assert [other.index.entries[name].tags for name in ("one", "two")] == [[], ["<b>\\x1b"]]


def test_other_metrics_are_told_by_name_while_a_run_goes_and_after(tmp_path: Path) -> None:
    config = resolved(rounds=3)
    execute(config, tmp_path / "run", build=lambda c: Errors(c["rounds"]))
    with asking(tmp_path, tmp_path / ".logs") as browser:
        for _ in range(2):  # finished, then as if it were not
            (run,) = browser.get("/api/runs").json()["runs"]
            assert run["metric"] == "rmse" and not run["share"] and run["accuracy"] > 1
            (tmp_path / "run/summary.json").unlink(missing_ok=True)
            wait_until(lambda: browser.get("/api/runs").json()["runs"][0]["state"] == "stopped")
        found = browser.get("/api/client", params={"run": "run", "client": "1"}).json()
        assert found["metric"] == {"name": "rmse", "share": False}
        assert len(found["rounds"]["rmse_before"]) == 4


def test_only_the_runs_of_a_page_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of ten thousand runs is listed as fast as its hundred newest are read."""
    run = small_run(tmp_path / "runs/first")
    for number in range(300):
        place = tmp_path / f"runs/run{number}"
        place.mkdir()
        for name in ("config.yaml", "summary.json"):
            (place / name).write_bytes((run / name).read_bytes())
    read: list[Path] = []
    real = run_index.read_config
    monkeypatch.setattr(run_index, "read_config", lambda path: read.append(path) or real(path))
    page = Page(tmp_path / "runs", tmp_path / ".logs")
    assert page._listed({})["total"] == 301 and len(read) == 100
    page._listed({})
    assert len(read) == 100
    page._listed({"offset": "100"})
    assert len(read) == 200
