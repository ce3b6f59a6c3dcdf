"""`idiolect recipe` from beginning to end, on digits, with real worker processes."""

import csv
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from idiolect.papers.worker_pool import WorkerPool
from idiolect.runs import directory
from tests.cli.calls import call
from tests.papers.tiny import TINY, numbers, start, tiny, written


def test_the_whole_cycle() -> None:
    """Run, keep, show: the second time nothing is run, and one more seed runs that seed alone."""
    result = call("recipe", written())
    assert result.exit_code == 0, result.output
    for word in ("FedAvg", "α=0.5", "90 ± 1.5", "prox *", "FedAvg is best", "paired t test"):
        assert word in result.stdout, word
    folder = Path("results/tiny")
    rows = list(csv.DictReader((folder / "cells.csv").read_text().splitlines()))
    assert len(rows) == 10 and {row["quick"] for row in rows} == {"no"}
    assert all(row["commit"] and row["device"] and row["started"] for row in rows)
    assert {row["rounds"] for row in rows} == {"3"} and {row["dtype"] for row in rows} == {
        "float32"
    }
    run = directory.read_summary(next(Path("runs/recipes").glob("fedavg-*seed0-*")))
    values = [float(row["value"]) for row in rows if row["row"] == "fedavg"]
    assert any(abs(100 * run["protocol"]["value"] - value) < 1e-3 for value in values)
    assert not list(Path("runs/recipes").glob("*/checkpoint"))
    for name in ("table.md", "table.tex", "table.csv", "verdicts.json", "runs.jsonl"):
        assert (folder / name).exists()
    table = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
    assert {row["paper_mean"] for row in table if row["row"] == "fedavg"} == {"80", "90"}
    assert "/root" not in (folder / "runs.jsonl").read_text()
    again = call("recipe", "tiny.yaml", "--seeds", "0,1,2", "--only", "fedavg/even")
    assert again.exit_code == 0 and again.stderr.count("done in") == 1
    assert "seed 2:" in again.stderr and len(numbers()) == 11
    status = call("recipe", "tiny.yaml", "--status", "--json")
    assert json.loads(status.stdout)[0]["missing"] == [] and "done in" not in status.stderr
    for form, word in {"md": "<br>90 ± 1.5", "latex": r"\toprule", "csv": "paper_mean"}.items():
        assert word in call("recipe", "tiny.yaml", "--status", "--format", form).stdout


def test_a_run_directory_of_an_earlier_revision_is_not_recorded_as_of_this_one() -> None:
    """Its numbers would stand for ever. What it holds is put aside and run again."""
    rows = [{"id": "fomo", "method": "fedfomo", "set": {"method.val_share": 0.2}}]
    base = {**TINY["base"], "method": {"lr": 0.05}}
    changes = {"rows": rows, "columns": TINY["columns"][:1], "claims": [], "paper_values": {}}
    result = call("recipe", written(base=base, seeds=[0], quick={}, **changes))
    assert result.exit_code == 0, result.output
    [run] = Path("runs/recipes").iterdir()
    env = json.loads((run / "env.json").read_text())
    assert env.pop("revision") == 2
    (run / "env.json").write_text(json.dumps(env))  # as it was before revisions were recorded
    Path("results/tiny/runs.jsonl").unlink()
    again = call("recipe", "tiny.yaml")
    assert again.exit_code == 0 and "earlier-1" in again.stderr, again.output
    assert (run / "earlier-1" / "summary.json").exists()
    [line] = Path("results/tiny/runs.jsonl").read_text().splitlines()
    assert json.loads(line)["machine"]["revision"] == 2


def test_a_failing_cell_stops_no_other() -> None:
    """Nor does a dataset that is not there; both say why, and the reason is kept."""
    columns = [
        {"id": "even", "set": {"split.alpha": 50}},
        {"id": "impossible", "set": {"split.min_size": 1000}},
        {"id": "absent", "set": {"data": {"name": "emnist"}}},
    ]
    rows = [{"id": "fedavg", "method": "fedavg"}]
    claims = [{"id": "c", "says": "high", "kind": "above", "row": "fedavg", "value": 20,
               "columns": ["even"]}]  # fmt: skip
    written(columns=columns, rows=rows, claims=claims, paper_values={}, quick={})
    result = call("recipe", "tiny.yaml", "--jobs", "2")
    assert result.exit_code == 1, result.output
    assert "no data for 2 runs: dataset 'emnist' not found" in result.stdout
    assert "holds: high" in result.stdout
    failed = json.loads(Path("results/tiny/failed.json").read_text())
    assert set(failed) == {"fedavg/impossible seed 0", "fedavg/impossible seed 1"}
    assert "min_size" in failed["fedavg/impossible seed 0"]
    assert len(numbers()) == 2
    table = Path("results/tiny/table.md").read_text()
    assert "no data" in table and "failed" in table
    told = json.loads(Path("results/tiny/no_data.json").read_text())["emnist"]
    assert told["cells"] == ["fedavg/absent"] and "IDX" in told["how"]
    overview = json.loads(call("recipe", "tiny.yaml", "--status", "--json").stdout)[0]
    assert (overview["done"], overview["no data"], overview["cells"]) == (2, 2, 6)


def test_a_part_that_is_run_leaves_the_rest_of_the_table_as_it_was() -> None:
    """Why other cells are empty stays in the written table, and what is bold with it."""
    columns = [{"id": "even", "set": {"split.alpha": 50}}]
    rows = [
        {"id": "fedavg", "method": "fedavg"},
        {"id": "local", "method": "local"},
        {"id": "absent", "method": "fedavg", "set": {"data": {"name": "emnist"}}},
        {"id": "impossible", "method": "fedavg", "set": {"split.min_size": 1000}},
    ]
    written(columns=columns, rows=rows, claims=[], paper_values={}, quick={})
    call("recipe", "tiny.yaml")
    before = Path("results/tiny/table.md").read_text()
    assert "no data" in before and "failed" in before
    result = call("recipe", "tiny.yaml", "--only", "fedavg")
    assert result.exit_code == 0 and "emnist" not in result.stdout  # nobody asked for it
    assert Path("results/tiny/table.md").read_text() == before
    assert "absent/even" in Path("results/tiny/no_data.json").read_text()


def test_quick_says_so_everywhere() -> None:
    result = call("recipe", written(), "--quick", "--only", "fedavg")
    assert result.exit_code == 0, result.output
    assert "QUICK" in result.stdout.splitlines()[0]
    assert all(line.startswith("QUICK") for line in result.stdout.splitlines() if "[" in line)
    folder = Path("results/tiny/quick")
    assert "QUICK" in (folder / "table.md").read_text().splitlines()[0]
    assert "QUICK" in (folder / "table.tex").read_text()
    for name in ("cells.csv", "table.csv"):
        rows = csv.DictReader((folder / name).read_text().splitlines())
        assert {row["quick"] for row in rows} == {"yes"}
    assert all(told["quick"] for told in json.loads((folder / "verdicts.json").read_text()))
    assert not Path("results/tiny/runs.jsonl").exists()


def test_a_budget_runs_what_decides_first_and_says_what_is_missing() -> None:
    claims = [{"id": "c", "says": "s", "kind": "above", "row": "prox", "value": 1,
               "columns": ["even"]}]  # fmt: skip
    written(claims=claims)
    nothing = call("recipe", "tiny.yaml", "--budget", "0s")
    assert nothing.exit_code == 0 and "budget is spent" in nothing.stderr
    assert nothing.stdout.count("missing: tiny") == 5
    process = start("tiny.yaml", "--budget", "300s")
    order = [line for line in process.communicate()[1].splitlines() if "done in" in line]
    assert process.returncode == 0 and order[0].startswith("tiny prox/even")


@pytest.mark.heavy  # tests/faults kills a recipe too
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGINT, id="ctrl-c"),
        pytest.param(signal.SIGKILL, id="kill -9"),
    ],
)
def test_a_stopped_recipe_goes_on(how: signal.Signals) -> None:
    """The same command again ends with the numbers of one that was left alone."""
    base = {"data": "digits", "split": {"name": "dirichlet", "clients": 4}, "model": "linear",
            "rounds": 100, "method": {"lr": 0.05}}  # fmt: skip
    rows = [{"id": "fedavg", "method": "fedavg"}, {"id": "local", "method": "local"}]
    columns = [{"id": "even", "set": {"split.alpha": 50}}]
    written(base=base, rows=rows, columns=columns, seeds=[0], quick={}, claims=[], paper_values={})
    process = start("tiny.yaml")
    for _ in range(6000):
        going = list(Path("runs/recipes").glob("*/events.jsonl"))
        if going and len(directory.read_events(going[0].parent)) > 5:
            break
        time.sleep(0.01)
    process.send_signal(how)
    process.communicate()
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)
    assert not list(Path("runs/recipes").glob("*/summary.json"))
    for _ in range(6000):  # the worker of a killed program saves its run and ends
        if list(Path("runs/recipes").glob("*/checkpoint/*")):
            break
        time.sleep(0.01)
    else:
        raise AssertionError("the run under way was not saved")
    time.sleep(0.5)
    assert len(directory.read_events(going[0].parent)) > 5
    assert call("recipe", "tiny.yaml").exit_code == 0
    assert call("recipe", "tiny.yaml", "--results", "alone", "--out", "runs/alone").exit_code == 0
    assert numbers() == numbers(root="alone") and len(numbers()) == 2


def test_a_worker_that_dies_is_noticed() -> None:
    from idiolect.papers import planner
    from idiolect.papers.cells import cells
    from idiolect.papers.results import Results

    recipe = tiny()
    [job, *_] = planner.missing(Results(Path("r"), recipe), cells(recipe), Path("o")).jobs
    pool = WorkerPool(1)
    pool.give(job)
    [worker] = pool.workers
    worker.process.kill()
    while not any(event["event"] == "ended" for _, event in pool.events.queue):
        time.sleep(0.01)
    worker.job = None  # it had finished its job, and nobody knows yet that it is gone
    pool.give(job)
    told = []
    while "ended" not in told:
        found = pool.next_event(1)
        told += [found[1]["event"]] if found else []
    assert pool.workers == [] and pool.free
    folder = Path(pool.logs.name)
    pool.close()
    assert not folder.exists()


def test_a_worker_that_said_it_ends_is_given_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from idiolect.papers import planner
    from idiolect.papers.cells import cells
    from idiolect.papers.results import Results

    recipe = tiny()
    [job, *_] = planner.missing(Results(Path("r"), recipe), cells(recipe), Path("o")).jobs
    pool = WorkerPool(1)
    pool.give(job)
    [first] = pool.workers
    pool.events.put((first, {"event": "failed", "reason": "r", "again": True, "ends": True}))
    while (found := pool.next_event(1)) is None or found[1]["event"] != "failed":
        pass
    first.job = None
    pool.give(job)
    assert first.job is None and len(pool.workers) == 2
    pool.stop(lambda worker, event: None, at_once=True)
    pool.close()


@pytest.mark.parametrize("first_alone", [True, False])
def test_the_first_job_does_a_round_before_the_others_begin(first_alone: bool) -> None:
    """On a GPU it compiles kernels until then, which the others find in the caches."""
    from idiolect.papers import planner
    from idiolect.papers.cells import cells
    from idiolect.papers.results import Results
    from idiolect.papers.runner import Runner

    recipe = tiny()
    jobs = planner.missing(Results(Path("r"), recipe), cells(recipe), Path("o")).jobs[:3]
    runner, told = Runner(jobs, processes=2, first_alone=first_alone), []
    give, hear = runner.pool.give, runner._told

    def given(job: Any) -> None:
        told.append("given")
        give(job)

    def heard(worker: Any, event: dict[str, Any]) -> None:
        told.append(f"round {event['round']}" if event["event"] == "round" else event["event"])
        hear(worker, event)

    runner.pool.give, runner._told = given, heard  # type: ignore[method-assign]
    assert not runner.run().left
    second = [at for at, what in enumerate(told) if what == "given"][1]
    assert ("round 1" in told[:second]) == first_alone
