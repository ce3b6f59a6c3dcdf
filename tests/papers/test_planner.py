"""What comes first, what it costs, and who shares a run."""

from pathlib import Path
from typing import Any

import pytest

from idiolect.papers import campaign, planner, run_record
from idiolect.papers.cells import cells
from idiolect.papers.planner import CellJob, work
from idiolect.papers.recipe import Recipe
from idiolect.papers.results import Results
from idiolect.papers.run_record import Record
from idiolect.papers.runner import Outcome, RecipeProgress, Runner
from idiolect.papers.worker_pool import WorkerProcess
from tests.papers.tiny import tiny


def jobs(recipe: Recipe) -> list[CellJob]:
    return planner.missing(Results(Path("r"), recipe), cells(recipe), Path("o")).jobs


def names(found: list[CellJob]) -> list[tuple[str, str]]:
    return [(job.cells[0].row, job.cells[0].column) for job in found]


def test_seeds_of_a_cell_are_one_job() -> None:
    found = jobs(tiny())
    assert [job.seeds for job in found] == [[0, 1]] * 5
    assert len({out for job in found for out in job.outs}) == 10


def test_a_new_revision_of_a_method_does_not_take_the_runs_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A finished directory has the same settings; its numbers are the old method's."""
    [before] = {out for job in jobs(tiny()) for out in job.outs if "fedavg" in out.name
                and job.places == {("fedavg", "skewed")} and "seed0" in out.name}  # fmt: skip
    monkeypatch.setattr(run_record, "revision", lambda config: 2)
    later = {out for job in jobs(tiny()) for out in job.outs}
    assert before not in later and len(later) == 10


def test_cells_that_show_other_numbers_of_a_run_share_it() -> None:
    columns = [{"id": "client"}, {"id": "server", "metric": "server_accuracy"}]
    rows = [{"id": "fedavg", "method": "fedavg"}]
    [job] = jobs(tiny(columns=columns, rows=rows, claims=[], paper_values={}, quick={}))
    assert len(job.cells) == 4 and len(set(job.outs)) == 2


def test_fine_tuning_rows_share_the_trained_model() -> None:
    rows = [{"id": f"ft{n}", "method": "fedavg_ft", "set": {"method.ft_steps": n}} for n in (1, 2)]
    rows += [{"id": "other", "method": "fedavg_ft", "set": {"method.lr": 0.7}}]
    columns = [{"id": "even"}]
    found = jobs(tiny(columns=columns, rows=rows, claims=[], paper_values={}, quick={}))
    assert sorted(len(job.cells) for job in found) == [2, 4]


def test_the_claim_that_is_cheapest_to_decide_comes_first() -> None:
    claims = [
        {"id": "dear", "says": "s", "kind": "best", "row": "fedavg"},
        {"id": "cheap", "says": "s", "kind": "above", "row": "local", "value": 1,
         "columns": ["even"]},
    ]  # fmt: skip
    found = jobs(tiny(claims=claims))
    for job in found:
        job.seconds = 10.0
    order = names(planner.ordered(found, {}))
    assert order[0] == ("local", "even")
    assert order[-1] == ("prox", "even")  # of no claim, and not in the paper
    first = names(planner.ordered(jobs(tiny(claims=claims, first=["skewed"])), {}))
    assert {column for _, column in first[:2]} == {"skewed"}


def test_decided_claims_need_nothing() -> None:
    claims = [
        {"id": "done", "says": "s", "kind": "above", "row": "fedavg", "value": 1,
         "columns": ["even"]},
        {"id": "open", "says": "s", "kind": "above", "row": "local", "value": 1,
         "columns": ["even"]},
    ]  # fmt: skip
    values = {"tiny": {("fedavg", "even", "protocol"): {0: 50.0, 1: 51.0}}}
    assert names(planner.ordered(jobs(tiny(claims=claims)), values))[0] == ("local", "even")


def test_recorded_speed_is_used() -> None:
    found = jobs(tiny())
    config = found[0].cells[0].config
    about: dict[str, Any] = {"device": "a processor"}
    record = Record({}, config, {"seconds": 8.0}, about)
    planner.estimate(found, [record], on_gpu=False)
    assert found[0].measured and abs(found[0].seconds - 16.0) < 1e-9  # two seeds
    planner.estimate(found, [record], on_gpu=True)  # says nothing about another machine
    assert not found[0].measured
    assert work(config | {"rounds": 6}) == 2 * work(config)


def test_a_run_in_the_same_precision_says_more_than_one_of_the_same_method() -> None:
    found = jobs(tiny())[:1]
    config = found[0].cells[0].config
    other = config | {"method": config["method"] | {"name": "fedprox"}}
    about: dict[str, Any] = {"device": "a processor"}
    slow = Record({}, config | {"dtype": "float64"}, {"seconds": 80.0}, about)
    planner.estimate(found, [slow], on_gpu=False)
    assert abs(found[0].seconds - 160.0) < 1e-9  # better than nothing
    planner.estimate(found, [slow, Record({}, other, {"seconds": 8.0}, about)], on_gpu=False)
    assert abs(found[0].seconds - 16.0) < 1e-9


def test_work_is_that_of_the_network() -> None:
    """A linear layer on 8x8 digits has 640 weights; the hidden one has more."""
    small = jobs(tiny())[0].cells[0].config
    large = small | {"model": {"name": "mlp", "hidden": 64, "layers": 1}}
    assert work(large) / work(small) == (64 * 64 + 64 * 10) / 640
    own = small | {"model": {"name": "mine.py:Net"}}
    assert work(own) == work(small) / 640 * planner.SMALL_NETWORK


def test_networks_of_strange_records_are_not_built() -> None:
    found = jobs(tiny())
    config = found[0].cells[0].config | {"model": {"name": "mlp", "hidden": 10**12, "layers": 1}}
    record = Record({}, config, {"seconds": 8.0}, {"device": "a processor"})
    planner.estimate(found, [record], on_gpu=False)
    assert not found[0].measured


def test_the_pace_counts_jobs_under_way_as_far_as_they_are() -> None:
    """A short job that is done says little beside a long one that is half done."""
    short, long, *_ = jobs(tiny())
    short.seconds, long.seconds = 10.0, 1000.0
    runner = Runner([short, long], processes=2, budget=3600.0)
    runner.began -= 100.0
    runner.estimated_done = 10.0
    assert runner._pace() == 10.0  # 200 seconds of two processes for 10
    half = WorkerProcess(None, Path(), long, round=5, rounds=10)  # type: ignore[arg-type]
    runner.pool.workers.append(half)
    assert abs(runner._pace() - 200 / 510) < 0.01
    runner.pool.close()


@pytest.mark.parametrize(
    ("processes", "budget", "longest_first"), [(2, None, True), (1, None, False), (2, 60.0, False)]
)
def test_where_all_will_be_done_long_runs_are_not_left_for_the_end(
    processes: int,
    budget: float | None,
    longest_first: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ditto trains twice; the claim is about another method."""
    rows = [{"id": name, "method": name} for name in ("local", "fedavg", "ditto")]
    claims = [{"id": "c", "says": "s", "kind": "above", "row": "fedavg", "value": 1,
               "columns": ["even"]}]  # fmt: skip
    recipe = tiny(rows=rows, claims=claims, paper_values={}, cells=[], quick={})
    handed: list[str] = []

    class Stub:
        def __init__(self, jobs: list[CellJob], *rest: object) -> None:
            handed.extend(job.cells[0].row for job in jobs)

        def run(self) -> Outcome:
            return Outcome()

    monkeypatch.setattr(campaign, "Runner", Stub)
    made = campaign.Campaign([recipe], tmp_path / "results", tmp_path / "runs")
    made.run(processes, budget, RecipeProgress())
    assert (handed[0] == "ditto") == longest_first
    assert sorted(set(handed)) == ["ditto", "fedavg", "local"]
