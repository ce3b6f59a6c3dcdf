"""The committed pages are those that recipes and committed results give."""

import shutil
from pathlib import Path

import pytest

from idiolect.papers import pages, recipe
from idiolect.papers.campaign import Campaign
from idiolect.papers.results import Results
from tests.papers.tiny import tiny

ROOT = Path(__file__).parents[2]
IN_A_CHECKOUT = pytest.mark.skipif(not (ROOT / "docs/papers").is_dir(), reason="not in a checkout")


@IN_A_CHECKOUT
def test_pages_are_up_to_date_and_give_every_claim_a_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    made = pages.render(Path("benchmarks/results/papers"), Path("docs/papers"))
    by_hand = {"notes.md"}
    files = [file for file in Path("docs/papers").iterdir() if file.name not in by_hand]
    there = {file.name: file.read_text(encoding="utf-8") for file in files}
    assert sorted(made) == sorted(there), "run `make papers`"
    old = [name for name, text in made.items() if there[name] != text]
    assert not old, f"{old} differ from the results; run `make papers`"
    for name in recipe.names():
        one = recipe.read(name)
        for claim in one.claims:
            lines = made[f"{one.paper}.md"].splitlines()
            [line] = [x for x in lines if x.startswith(f"| {claim.says} ")][:1]
            shrunk = line == f"| {claim.says} |"  # under a heading that says so
            assert shrunk or "hold" in line or "not enough evidence" in line


def test_a_printed_number_is_counted_once() -> None:
    columns = [{"id": "even"}, {"id": "tested-otherwise", "extra": True}]
    made = tiny(columns=columns, rows=[{"id": "fedavg", "method": "fedavg"}], claims=[], quick={},
                paper_values={"fedavg": {"even": 1, "tested-otherwise": 1}})  # fmt: skip
    assert pages.Section(Results(Path("r"), made)).printed() == (1, 0, 0)


@IN_A_CHECKOUT
def test_every_open_claim_is_open_for_one_reason() -> None:
    results = ROOT / "benchmarks/results/papers"
    sections = [pages._section(results, recipe.read(name)) for name in recipe.names()]
    whole = [section.open_for() for section in sections]
    assert [sum(why.values()) for why in whole] == [section.answers()[2] for section in sections]
    no_data = {
        section.recipe.name for section, why in zip(sections, whole, strict=True) if why["data"]
    }
    told = {section.recipe.name for section in sections if section.results.unavailable()}
    assert no_data <= told


@IN_A_CHECKOUT
def test_a_recipe_takes_over_what_others_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idiolect.papers.planner.without_data", lambda config: "")
    made = ROOT / "benchmarks/results/papers/pflego-table1"
    shutil.copytree(made, tmp_path / made.name)
    campaign = Campaign([recipe.read("pflego-figure8")], tmp_path, tmp_path / "runs")
    assert campaign.parts[0].counts()["done"] == 0
    told: list[str] = []
    [part] = campaign.take_over(told.append)
    assert part.counts()["done"] >= 18 and "were made for another recipe" in told[0]
    assert campaign.take_over(told.append) == [] and len(told) == 1


@IN_A_CHECKOUT
def test_pages_leave_results_alone_whose_data_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else their tables would say of another machine's numbers that there is no data."""
    monkeypatch.setattr(recipe, "names", lambda: ["pflego-table1", "pflego-figure8"])
    monkeypatch.setattr(
        "idiolect.papers.planner.without_data",
        lambda config: "" if config["data"]["name"] == "fashion_mnist" else "not here",
    )
    made = tmp_path / "pflego-table1"
    shutil.copytree(ROOT / "benchmarks/results/papers" / made.name, made)
    before = {file: file.read_bytes() for file in made.iterdir() if file.is_file()}
    pages.main(tmp_path, tmp_path / "docs")
    assert all(file.read_bytes() == text for file, text in before.items())
    assert (tmp_path / "pflego-figure8/runs.jsonl").exists()  # all of it is Fashion-MNIST
