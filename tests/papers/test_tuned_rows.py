"""Rows whose settings trials choose on validation samples, from the recipe to the table."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from idiolect.papers import campaign
from idiolect.papers.campaign import Campaign
from idiolect.papers.cells import VAL_SHARE, WAITING, cells, trials
from idiolect.papers.paper_table import PaperTable, latex, markdown
from idiolect.papers.results import Results
from idiolect.papers.runner import Outcome, RecipeProgress, Runner
from idiolect.papers.tuned_rows import LOST, GridPoint, TunedCell, chosen, states, tuned_cells
from tests.cli.calls import call
from tests.papers.tiny import tiny, written

GRID = {"method.lr": [0.0001, 0.3, 0.001]}
CHANGES: dict[str, Any] = {
    "base": {
        "data": "digits",
        "split": {"name": "dirichlet", "clients": 4, "alpha": 50},
        "model": {"name": "mlp", "hidden": 8, "layers": 1},
        "rounds": 2,
        "protocol": "fedas",
        "method": {"lr": 0.05},
    },
    "columns": [{"id": "even", "label": "Even"}, {"id": "skewed", "set": {"split.alpha": 0.5}}],
    "rows": [
        {"id": "fedavg", "method": "fedavg"},
        {"id": "tuned", "label": "FedAvg, rate tuned", "method": "fedavg", "extra": True,
         "columns": ["even"], "tune": GRID},
    ],
    "claims": [{"id": "c", "says": "FedAvg is above itself tuned", "kind": "beats",
                "row": "fedavg", "over": "tuned", "columns": ["even"]}],
    "paper_values": {},
    "tune_seeds": [0],
    "quick": {"rounds": 1, "seeds": [5], "rows": ["fedavg"]},
}  # fmt: skip
RECORDS = Path("results/tiny/runs.jsonl")


TUNED = "FedAvg, rate tuned is tuned in every column on validation samples"
CHOSEN = "Chosen: Even: lr=0.3 (lr at the edge of the grid)."


def tuned_row(**changes: Any) -> dict[str, Any]:
    return CHANGES | {"rows": [CHANGES["rows"][0], CHANGES["rows"][1] | changes]}


def records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORDS.read_text().splitlines()]


def choices() -> Any:
    return chosen(tuned_cells(Results(Path("results"), tiny(**CHANGES))))


def test_from_trials_to_the_chosen_cells() -> None:
    """One command; every form says what was tuned; the second time nothing is run."""
    before = json.loads(call("recipe", written(**CHANGES), "--status", "--json").stdout)[0]
    assert (before["cells"], before["done"]) == (9, 0)  # four cells, two that wait, three trials
    assert f"{WAITING}, 2 cells: tuned/even" in before["missing"]
    assert before["tuning"]["tuned/even"]["chosen"] is None
    result = call("recipe", "tiny.yaml")
    assert result.exit_code == 0, result.output
    assert "tuned/even lr=0.001 seed 0: done" in result.stderr
    assert "tuned/even seed 0,1: done" in result.stderr
    assert "; tuned on validation samples: tuned]" in result.stdout
    folder = Path("results/tiny")
    for told in (result.stdout, (folder / "table.md").read_text()):
        assert TUNED in told and CHOSEN in told and "(20 % of every client's" in told
    assert CHOSEN in (folder / "table.tex").read_text()
    table = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
    assert {row["tuned"] for row in table if row["row"] == "tuned"} == {CHOSEN[14:-1]}
    about = json.loads((folder / "tuning.json").read_text())["tuned/even"]
    assert about["chosen"] == {"method.lr": 0.3} and len(about["trials"]) == 3
    lines = list(csv.DictReader((folder / "cells.csv").read_text().splitlines()))
    assert len(lines) == 6  # trials are no cells
    shares = {(r["config"]["split"]["val_share"], r["config"]["method"]["lr"]) for r in records()}
    assert shares == {(VAL_SHARE, lr) for lr in GRID["method.lr"]} | {(0.0, 0.3), (0.0, 0.05)}
    again = call("recipe", "tiny.yaml", "--json")
    assert "done in" not in again.stderr
    after = json.loads(again.stdout)[0]
    assert (after["cells"], after["done"], after["missing"]) == (9, 9, [])


def test_other_seeds_do_not_change_what_is_chosen() -> None:
    call("recipe", written(**CHANGES), "--only", "tuned")
    assert len(records()) == 5
    more = call("recipe", "tiny.yaml", "--only", "tuned/even", "--seeds", "7,8")
    assert more.stderr.count("done in") == 1 and len(records()) == 7
    assert {r["config"]["method"]["lr"] for r in records() if r["config"]["seed"] > 1} == {0.3}


def test_a_budget_and_quick_know_of_trials() -> None:
    nothing = call("recipe", written(**CHANGES), "--budget", "0s")
    assert nothing.stdout.count("missing: tiny tuned/even lr=") == 3
    assert f"{WAITING}, 2 cells" in nothing.stdout
    quick = call("recipe", "tiny.yaml", "--quick", "--json")
    assert json.loads(quick.stdout)[0]["cells"] == 2  # rows of quick: fedavg alone
    whole = tiny(**CHANGES | {"quick": {"rounds": 1, "seeds": [5], "set": {"method.lr": 0.2}}})
    tried = trials(whole, quick=True)
    assert [(c.seed, c.config["method"]["lr"]) for c in tried] == [
        (5, 0.0001),
        (5, 0.3),
        (5, 0.001),
    ]
    assert {cell.seed for cell in trials(replace(whole, tune_seeds=()))} == {0, 1}


@pytest.mark.parametrize("stacks", [[1], [5, 0]], ids=["among the trials", "before the cells"])
def test_a_stopped_tuning_goes_on(stacks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """`stacks`: how many are run before each stop; then the command is given again."""
    left = list(stacks)

    class Stopped(Runner):
        def __init__(self, jobs: Any, *rest: Any) -> None:
            count = left.pop(0)
            super().__init__(jobs[:count], *rest)
            self.rest = jobs[count:]

        def run(self) -> Outcome:
            found = super().run()
            return Outcome(found.left + self.rest, found.failed, interrupted=bool(self.rest))

    recipe = tiny(**CHANGES)
    with monkeypatch.context() as patch:
        patch.setattr(campaign, "Runner", Stopped)
        made = Campaign([recipe], Path("results"), Path("runs"))
        assert made.run(1, None, RecipeProgress()).interrupted and made.interrupted
        assert (choices()["tuned", "even"] == WAITING) == (stacks == [1])
    done = len(records())
    result = call("recipe", "tiny.yaml", "--out", "runs")
    assert result.exit_code == 0 and len(records()) == 9 > done
    assert call("recipe", "tiny.yaml", "--results", "alone", "--out", "alone").exit_code == 0
    [a, b] = [Path(root, "tiny/table.csv").read_text() for root in ("results", "alone")]
    assert a == b


def test_test_samples_choose_nothing() -> None:
    """With every number of the records turned round but that on validation samples."""
    call("recipe", written(**CHANGES), "--only", "tuned")
    before = choices()
    turned = records()
    for record in turned:
        for name in set(record["numbers"]) - {"validation"}:
            record["numbers"][name] = 100 - record["numbers"][name]
        best = 1.0 if record["config"]["method"]["lr"] == 0.0001 else 0.0
        record["summary"]["protocol"]["value"] = best
        for series in ("accuracy", "accuracy_after", "accuracy_global"):
            for one in (record["summary"][series] or {}).values():
                one |= dict.fromkeys(("mean", "pooled", "p10", "worst"), best)
    RECORDS.write_text("".join(json.dumps(record) + "\n" for record in turned))
    assert choices() == before == {("tuned", "even"): {"method.lr": 0.3}}


def test_a_trial_that_diverges_is_lost() -> None:
    result = call(
        "recipe", written(**tuned_row(tune={"method.lr": [0.3, 1e30]})), "--only", "tuned"
    )
    assert "Chosen: Even: lr=0.3 (lr at the edge of the grid; diverged: lr=1e+30)." in result.stdout
    result = call(
        "recipe", written(**tuned_row(tune={"method.lr": [1e20, 1e30]})), "--only", "tuned"
    )
    assert result.exit_code == 0 and f"cannot be run, 2 cells: {LOST}" in result.stdout
    assert f"Chosen: Even: {LOST}." in result.stdout
    assert f"| {LOST}<br>" in Path("results/tiny/table.md").read_text()


def test_a_wrong_setting_is_one_line_and_stops_no_other() -> None:
    result = call("recipe", written(**tuned_row(tune={"method.lrr": [1, 2]})))
    assert result.exit_code == 0 and "did you mean 'lr'" in result.stdout
    assert "cannot be run, 4 cells: unknown setting of method 'fedavg' 'lrr'" in result.stdout
    assert len(records()) == 4


def test_a_trial_that_fails_leaves_its_cells_waiting() -> None:
    changes = tuned_row(set={"split.min_size": 1000})
    result = call("recipe", written(**changes), "--only", "tuned")
    assert result.stdout.count("(failed: ") == 3 and f"{WAITING}, 2 cells" in result.stdout
    failed = json.loads(Path("results/tiny/failed.json").read_text())
    assert "tuned/even lr=0.3 seed 0" in failed
    assert Results(Path("results"), tiny(**changes)).states() == {("tuned", "even"): "failed"}


def test_without_data_nothing_waits() -> None:
    base = CHANGES["base"] | {"data": {"name": "emnist"}}
    result = call("recipe", written(**CHANGES | {"base": base}), "--json")
    told = json.loads(result.stdout)[0]
    assert told["no data"] == 9 and not any(WAITING in line for line in told["missing"])
    assert {cell["state"] for cell in told["table"]} == {"no data"}


def worths(*numbers: float | None, key: str = "method.lr", values: Any = (1, 2, 3)) -> TunedCell:
    """Points with one finished run each."""

    class Finished:
        def __init__(self, number: float | None) -> None:
            self.number = number

        def shown(self, metric: str) -> float | None:
            assert metric == "validation"
            return self.number

    each: Any = [Finished(number) for number in numbers]
    return TunedCell([GridPoint({key: v}, {0: r}) for v, r in zip(values, each, strict=True)])


def test_the_first_of_equals_is_chosen_and_edges_are_told() -> None:
    assert worths(70.0, 71.0, 71.0).chosen == {"method.lr": 2}
    assert worths(70.0, 71.0, 71.0).line == "lr=2"
    assert worths(70.0, None, 72.0).line == "lr=3 (lr at the edge of the grid; diverged: lr=2)"
    words = worths(1.0, 2.0, 0.0, key="method.order", values=["a", "b", "c"])
    assert words.line == "order=b" and words.as_dict()["at_the_edge"] == []
    assert worths(2.0, 1.0, key="method.on", values=[True, False]).line == "on=True"
    only = worths(1.0, 2.0, 0.0)  # a setting of which one value is tried has no edge
    given = [GridPoint({**one.point, "method.mu": 1}, one.records) for one in only.trials]
    assert TunedCell(given).line == "lr=2 mu=1"
    assert worths(None, None, None).state == LOST == worths(None, None, None).line


def test_what_is_not_chosen_yet_says_how_far_it_is() -> None:
    half = TunedCell(
        [*worths(1.0, 2.0, values=(1, 2)).trials, GridPoint({"method.lr": 3}, {0: None})]
    )
    assert half.chosen == half.state == WAITING and half.best is None
    assert half.line == "not yet, 2 of 3 trials are there"
    tuned = {("tuned", "even"): half}
    assert states(tuned) == {("tuned", "even"): WAITING}
    table = PaperTable(tiny(**CHANGES), {}, {}, tuned=tuned | {("tuned", "skewed"): half})
    assert table.remarks[0].endswith("Chosen: Even, skewed: not yet, 2 of 3 trials are there.")
    assert f"| {WAITING}<br>" in markdown(table) and WAITING in latex(table)


def test_values_are_chosen_over_all_layers() -> None:
    """Also over those of single cells; the trials differ from the cells in the held out share."""
    single = [{"row": "tuned", "column": "even", "set": {"method.lr": 9.0}}]
    recipe = tiny(**CHANGES | {"cells": single})
    [one, _] = cells(recipe, only=["tuned"], chosen={("tuned", "even"): {"method.lr": 0.3}})
    trial = next(cell for cell in trials(recipe) if cell.config["method"]["lr"] == 0.3)
    assert one.config["method"]["lr"] == 0.3 and one.config["split"]["val_share"] == 0
    assert trial.config["split"].pop("val_share") == VAL_SHARE
    one.config["split"].pop("val_share")
    assert trial.config == one.config and trial.name == "tuned/even lr=0.3 seed 0"
    assert {cell.waiting for cell in cells(recipe, only=["tuned"])} == {True}
