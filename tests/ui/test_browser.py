"""The live page in a real browser: what people see, press and hear; nothing leaves the machine."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the page needs starlette: pip install 'idiolect[ui]'")
pytest.importorskip("plotly", reason="the page needs plotly")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")

from idiolect import report
from idiolect.deploy.client_registry import ClientRegistry
from tests.ui.pages import environment, going_run, served, small_run, some_runs, wait_until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return some_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def address(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(folder, tmp_path_factory.mktemp("logs")) as (address, _):
        yield address


def leave(tab: Any) -> None:
    """Before its server ends: a page that is open asks for it again."""
    tab.goto("about:blank")


def rows(tab: Any) -> Any:
    return tab.locator("table.runs tbody tr")


def test_it_lists_runs_and_finds_some(tab: Any, address: str) -> None:
    tab.goto(address)
    sync_api.expect(rows(tab)).to_have_count(3)
    tab.get_by_label("search runs").fill("fedper")
    sync_api.expect(rows(tab)).to_have_count(1)
    sync_api.expect(rows(tab).first).to_contain_text("finished")


def test_three_runs_are_compared(tab: Any, address: str) -> None:
    tab.goto(address)
    sync_api.expect(rows(tab)).to_have_count(3)
    for box in tab.get_by_role("checkbox").all():
        box.check()
    tab.get_by_role("button", name="Compare 3 runs").click()
    sync_api.expect(tab.locator("table.summary tbody tr")).to_have_count(3)
    tab.wait_for_selector(".plot .main-svg")
    assert tab.locator(".plot .main-svg").count() >= 3
    names = "() => document.querySelector('.plot')._fullLayout.annotations.map((one) => one.text)"
    tab.wait_for_function(f"() => ({names})().length === 3")  # at the ends of their lines
    assert {text.split("</span> ")[1] for text in tab.evaluate(names)} == {
        "local", "fedavg", "fedper"
    }  # fmt: skip
    assert tab.locator(".plot").first.locator(".legend").count() == 0


def test_the_slider_changes_the_matrix(tab: Any, address: str) -> None:
    tab.goto(f"{address}/#/report?run=fedavg-seed0")
    slider = tab.get_by_label("round of the matrix")
    tab.wait_for_selector("#matrix-plot .main-svg")
    place = tab.locator("#matrix-plot")
    before = place.evaluate("place => JSON.stringify(place.data[0].z)")
    assert tab.locator("#matrix output").inner_text() == "round 4"
    slider.focus()
    tab.keyboard.press("ArrowLeft")
    sync_api.expect(tab.locator("#matrix output")).to_have_text("round 3")
    tab.wait_for_function(
        "before => JSON.stringify(document.querySelector('#matrix-plot').data[0].z) !== before",
        arg=before,
    )


def test_similar_clients_are_put_together(tab: Any, address: str) -> None:
    tab.goto(f"{address}/#/report?run=fedavg-seed0")
    tab.wait_for_selector("#matrix-plot .main-svg")
    tab.locator("#matrix").get_by_role("checkbox").check()
    tab.wait_for_function(
        "() => String(document.querySelector('#matrix-plot').data[0].x[0]).startsWith('client')"
    )


def test_a_run_is_tagged_and_found_by_its_tag(tab: Any, address: str, folder: Path) -> None:
    tab.goto(f"{address}/#/report?run=fedper-seed0")
    tab.get_by_label("tags, with commas between").fill("<b>paper, mine")
    tab.keyboard.press("Enter")
    sync_api.expect(tab.locator("#link")).to_have_text("tags kept")
    tab.goto(f"{address}/#/")
    tab.get_by_role("button", name="runs tagged <b>paper").click()
    sync_api.expect(rows(tab)).to_have_count(1)
    assert (folder / "fedper-seed0/tags.json").exists() and tab.locator("main td b").count() == 0
    (folder / "fedper-seed0/tags.json").unlink()


def test_sites_are_followed_between_two_rounds(tab: Any, tmp_path: Path) -> None:
    """What the server's journal says is shown without reload, also while no round ends."""
    run = small_run(tmp_path / "sites")
    (run / "flower").mkdir()
    (run / "flower/terms.json").write_text("{}")
    registry = ClientRegistry(run / "flower/journal.jsonl")
    for client, name in enumerate(("Ulm", "Bonn", "<b>Kiel")):
        registry.note("enrolled", client=client, name=name, node=str(client))
    with served(tmp_path, tmp_path / ".logs") as (address, _):
        tab.goto(f"{address}/#/sites")
        tab.get_by_role("link", name="sites").click()
        kiel = tab.locator("[data-site='2']")
        kiel.locator(".state.here").wait_for()
        assert "<b>Kiel" in kiel.inner_text() and "MB sent" in kiel.inner_text()
        registry.note("gone", client=2, reason="node is offline")
        kiel.locator(".state.gone").wait_for()
        registry.note("enrolled", client=2, name="Kiel", node="7")
        kiel.locator(".state.here").wait_for()
        assert tab.locator("[aria-label=journal] tbody tr").count() == 5
        leave(tab)


def test_a_client_is_shown_over_the_rounds(tab: Any, address: str) -> None:
    tab.goto(f"{address}/#/report?run=fedavg-seed0")
    tab.get_by_role("button", name="client 2 over rounds").click()
    tab.wait_for_selector("#client-plot .main-svg")


def test_the_keyboard_is_enough(tab: Any, address: str) -> None:
    """Tab and space choose runs, Enter compares; Tab and arrows reach the slider."""
    tab.goto(address)
    rows(tab).first.wait_for()

    def reach(test: str) -> None:
        for _ in range(200):
            tab.keyboard.press("Tab")
            if tab.evaluate(f"(() => {{ const e = document.activeElement; return {test}; }})()"):
                return
        raise AssertionError(f"Tab never reaches {test}")

    for number in range(2):
        reach(f"e.type === 'checkbox' && e.closest('tr').rowIndex === {number + 1}")
        tab.keyboard.press("Space")
    for _ in range(200):
        tab.keyboard.press("Shift+Tab")
        if tab.evaluate("document.activeElement.id") == "compare":
            break
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert tab.evaluate(outline) != "none"
    tab.keyboard.press("Enter")
    tab.locator("table.summary").wait_for()
    tab.goto(f"{address}/#/report?run=fedper-seed0")
    tab.get_by_label("round of the matrix").wait_for()
    reach("e.type === 'range'")
    tab.keyboard.press("ArrowLeft")
    sync_api.expect(tab.locator("#matrix output")).to_have_text("round 3")


def test_a_going_run_is_followed_without_reload(tab: Any, tmp_path: Path) -> None:
    with (
        served(tmp_path, tmp_path / ".logs") as (address, _),
        going_run(tmp_path / "run", 600, 0.05),
    ):
        tab.goto(address)
        tab.evaluate("window.same = true")
        first = rows(tab).first
        first.locator(".state.running").wait_for()
        before = first.inner_text()
        wait_until(lambda: first.inner_text() != before)
        first.get_by_role("link").click()
        bar = tab.locator("#runs progress")
        bar.wait_for()
        value = float(bar.get_attribute("value"))
        wait_until(lambda: float(bar.get_attribute("value")) > value)
        assert tab.evaluate("window.same")
        leave(tab)


def test_stop_and_resume_by_button(
    tab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    with served(tmp_path, tmp_path / ".logs") as (address, page):
        # The program that continues a run is the one of these tests, which learns nothing.
        monkeypatch.setattr(
            page.control,
            "words",
            lambda run: [sys.executable, "tests/runs/fake_simulation.py", str(run), "60", "0", "r"],
        )
        with going_run(tmp_path / "run", 60, 0.3) as going:
            tab.goto(f"{address}/#/report?run=run")
            tab.get_by_role("button", name="End after this round").click()
            assert going.wait(30) == 130
        tab.get_by_role("button", name="Continue").click()
        tab.locator("#runs .state.finished").wait_for()
        leave(tab)
    assert (tmp_path / "run/summary.json").exists()


def test_hostile_and_half_written_runs_do_no_harm(tab: Any, tmp_path: Path) -> None:
    markup = "<img src=x onerror=alert(1)><script>alert(2)<"
    small_run(tmp_path / markup)
    small_run(tmp_path / "sound")
    half = small_run(tmp_path / "half")
    (half / "config.yaml").write_text((half / "config.yaml").read_text()[:50])
    begun = small_run(tmp_path / "begun")
    for name in ("summary.json", "clients.parquet"):
        (begun / name).unlink()
    (begun / "events.jsonl").write_bytes((begun / "events.jsonl").read_bytes()[:-40])
    with served(tmp_path, tmp_path / ".logs") as (address, _):
        tab.goto(address)
        sync_api.expect(rows(tab)).to_have_count(4)
        sync_api.expect(tab.locator(".state.problem")).to_have_count(1)
        assert markup in tab.locator("table.runs").inner_text()
        assert tab.locator("main img").count() == 0
        tab.get_by_role("link", name=markup).click()
        tab.locator("table.summary").wait_for()
        assert tab.locator("main img, main script").count() == 0
        tab.goto(f"{address}/#/report?run=begun")
        tab.locator("table.summary").wait_for()
        leave(tab)


def test_the_report_as_a_file(tab: Any, folder: Path, tmp_path: Path) -> None:
    """It sorts, its sliders move, names stay in sight on a phone; its policy refuses nothing."""
    file = tmp_path / "report.html"
    report.write(report.find([folder]), file, "html")
    tab.set_viewport_size({"width": 390, "height": 800})
    tab.goto(file.as_uri())
    tab.wait_for_selector(".plot .main-svg")
    names = tab.locator("table.summary tbody th")
    assert names.all_inner_texts()[-1] == "local"
    tab.get_by_role("button", name="accuracy %").first.click()
    assert names.all_inner_texts()[0] == "local"
    tab.locator(".scroll").first.evaluate("place => { place.scrollLeft = 300; }")
    assert names.first.bounding_box()["x"] >= 0
    picture = tab.locator("figure", has_text="similarity").first
    cells = "figure => JSON.stringify(figure.querySelector('.plot').data[0].z)"
    last = picture.evaluate(cells)
    picture.get_by_role("slider").focus()
    tab.keyboard.press("Home")
    assert picture.locator("output").inner_text() == "1" and picture.evaluate(cells) != last
    picture.get_by_role("checkbox").check()
    assert picture.evaluate("figure => figure.querySelector('.plot').data[0].x[0]").startswith(
        "client"
    )


def luminance(colour: str) -> float:
    parts = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return sum(share * v for share, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


VISIBLE_TEXT = """() => {
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !node.checkVisibility() || node.closest("svg, .skip")) continue;
    let behind = node, colour = "rgba(0, 0, 0, 0)";
    while (behind && colour.endsWith(", 0)")) {
      colour = getComputedStyle(behind).backgroundColor;
      behind = behind.parentElement;
    }
    found.push([node.tagName + "." + node.className + " " + node.textContent.slice(0, 30),
      getComputedStyle(node).color, colour]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(
    scheme: str, chromium: Any, address: str, folder: Path
) -> None:
    tab = chromium.new_page(color_scheme=scheme)
    chosen = "&".join(f"run={name.name}" for name in folder.iterdir())
    for path, ready in (("/", "table.runs td"), (f"/#/report?{chosen}", ".plot .main-svg")):
        tab.goto(address + path)
        tab.wait_for_selector(ready)
        texts = tab.evaluate(VISIBLE_TEXT)
        assert len(texts) > 20
        for what, ink, paper in texts:
            light, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (what, ink, paper)
    tab.close()
