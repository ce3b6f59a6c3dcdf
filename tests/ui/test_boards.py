"""The board of recipes and the board of sites."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the page needs starlette: pip install 'idiolect[ui]'")
httpx = pytest.importorskip("httpx")

from idiolect.deploy.client_registry import ClientRegistry
from idiolect.papers import recipe
from idiolect.ui.recipe_board import RecipeBoard
from idiolect.ui.site_board import SiteBoard
from tests.ui.pages import asking, going_run, small_run, wait_until

RESULTS = Path(__file__).parents[2] / "benchmarks/results/papers"
RECIPE = "fedas-table4"


@pytest.fixture
def one_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "names", lambda: [RECIPE])


def test_recipes_are_counted_once_and_again_when_results_change(
    one_recipe: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    may_count = threading.Event()
    real = RecipeBoard._told

    def told(self: RecipeBoard, name: str) -> Any:
        may_count.wait(60)  # else it may be done before the board is looked at
        counted.append(name)
        return real(self, name)

    monkeypatch.setattr(RecipeBoard, "_told", told)
    board = RecipeBoard(tmp_path, tmp_path / "runs")
    assert board()[0]["counting"]
    may_count.set()

    def known() -> Any:
        (card,) = board()
        return None if card.get("counting") else card

    empty = wait_until(known, 120)
    assert set(empty["cells"]) <= {"missing", "nodata"} and "claims" in empty["verdicts"]
    wait_until(lambda: not board._counting.locked() or board())
    assert counted == [RECIPE]
    (tmp_path / RECIPE).mkdir()
    for file in (RESULTS / RECIPE).iterdir():
        if file.is_file():
            (tmp_path / RECIPE / file.name).write_bytes(file.read_bytes())

    def done() -> Any:
        (card,) = board()
        return card if "done" in card["cells"] else None

    full = wait_until(done, 120)
    assert len(full["cells"]) == len(empty["cells"]) and "done" in full["told"]
    assert counted == [RECIPE, RECIPE]


def test_damaged_results_are_told_on_the_card(one_recipe: None, tmp_path: Path) -> None:
    (tmp_path / RECIPE).mkdir()
    for damage in ('{"config": {}}', '{"numbers": {}, "config": {"seed": []}}', "[]"):
        (tmp_path / RECIPE / "runs.jsonl").write_text(damage + "\n")
        told = RecipeBoard(tmp_path, tmp_path)._told(RECIPE)
        assert "is damaged" in told["told"] and told["cells"] == []


def test_a_cell_whose_run_is_locked_is_running(one_recipe: None, tmp_path: Path) -> None:
    board = RecipeBoard(tmp_path, tmp_path)
    about = {"title": "", "done": 2, "nodata": 1, "verdicts": ""}
    board._known[RECIPE] = (board._stamp(RECIPE), about)
    job = SimpleNamespace(outs=[tmp_path / "going", tmp_path / "not-begun"])
    board._parts[RECIPE] = SimpleNamespace(found=SimpleNamespace(jobs=[job], waiting=[None]))
    with going_run(tmp_path / "going", 400, 0.05):
        (card,) = board()
    assert card["cells"] == ["done", "done", "running", "missing", "missing", "nodata"]
    assert card["told"] == "2 done, 1 running, 2 missing, 1 without data"


def test_what_sites_did_is_read_once(tmp_path: Path) -> None:
    """However often somebody looks; and anew when the run was cut and resumed."""
    run = small_run(tmp_path / "sites")
    (run / "flower").mkdir()
    registry = ClientRegistry(run / "flower/journal.jsonl")
    registry.note("enrolled", client=3, name="Ulm", node="11")
    board = SiteBoard(run)

    def ulm() -> Any:
        return next(dict(site) for site in board()["sites"] if site["client"] == 3)

    first = ulm()
    size = (run / "events.jsonl").stat().st_size
    assert first["delivered"] == 3 and board.rounds.bytes_read == size
    assert ulm() == first and board.rounds.bytes_read == size
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    (run / "events.jsonl").write_bytes(b"".join(lines[:2]))
    assert ulm()["delivered"] == 1 and ulm()["name"] == "Ulm" and len(board()["journal"]) == 1


def test_sites_follow_the_journal_of_the_server(tmp_path: Path) -> None:
    """The lines are those the deploy room writes."""
    run = small_run(tmp_path / "sites")
    (run / "flower").mkdir()
    (run / "flower/terms.json").write_text("{}")
    registry = ClientRegistry(run / "flower/journal.jsonl")
    registry.note("enrolled", client=0, name="Ulm", node="11")
    registry.note("enrolled", client=1, name="<b>Bonn\x1b", node="12")
    registry.note("refused", kind="train", client=1, node="12", reason="not finite")
    registry.note("lost", kind="fit", client=1, node="12", reason="no answer within 9 s")
    registry.note("lost", kind="hello", client=-1, node="13", reason="no answer within 9 s")
    registry.note("gone", client=0, reason="node is offline")
    with asking(tmp_path, tmp_path / ".logs") as client:
        board = client.get("/api/federation", params={"run": "sites"}).json()
        assert all(site["client"] >= 0 for site in board["sites"])
        ulm, bonn = board["sites"][:2]
        assert ulm["name"] == "Ulm" and ulm["state"] == "gone" and bonn["delivered"] == 1
        assert bonn["refused"] == 1 and bonn["last_note"] == "lost: no answer within 9 s"
        assert bonn["bytes_up"] == 100 and bonn["bytes_down"] == 200  # of its one round
        journal = [json.loads(x) for x in (run / "flower/journal.jsonl").read_text().splitlines()]
        assert ulm["seen"] == journal[0]["time"]  # what nobody heard is no sign of life
        assert bonn["name"] == "<b>Bonn\\x1b" and bonn["state"] == "lost"
        registry.note("enrolled", client=0, name="Ulm", node="13")
        again = client.get("/api/federation", params={"run": "sites"}).json()
        assert again["sites"][0]["state"] == "here"
        assert json.loads(client.get("/api/runs").text)["runs"][0]["federation"]
