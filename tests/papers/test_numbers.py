"""What a run shows, on a real run of a few rounds."""

from pathlib import Path

import numpy as np
import pytest
import torch

from idiolect.errors import UserError
from idiolect.papers import round_series
from idiolect.papers.cells import cells
from idiolect.papers.evidence import Evidence
from idiolect.papers.numbers import (
    MISSING,
    FinishedRun,
    Moment,
    StoredRun,
    number,
    number_of_series,
    unit,
)
from idiolect.papers.results import Results
from idiolect.runs.execute import execute_together
from idiolect.runs.replaced_parameters import replacement_of_run
from tests.papers.tiny import TINY, tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    folder = tmp_path_factory.mktemp("numbers")
    rows = [{"id": "feddwa", "method": "feddwa"}]
    base = {"data": "digits", "model": "linear", "rounds": 3, "participation": 0.5,
            "split": {"name": "groups", "clients": 6, "groups": 3}}  # fmt: skip
    recipe = tiny(folder, base=base, rows=rows, columns=[{"id": "one"}], claims=[],
                  paper_values={}, quick={}, seeds=[0])  # fmt: skip
    [cell] = cells(recipe)
    execute_together([cell.config], [folder / "run"])
    return FinishedRun(folder / "run")


def test_numbers_of_the_summary(run: FinishedRun) -> None:
    assert number(run, "protocol") == 100 * run.summary["protocol"]["value"]
    assert number(run, "worst") == 100 * run.summary["accuracy"]["last"]["worst"]
    assert number(run, "clients") == 6
    assert number(run, "bytes_up") == run.summary["bytes_up"]
    assert unit("protocol") == "%" and unit("bytes_per_client_round") == "MiB"
    assert number(run, "accuracy.best.round") == run.summary["accuracy"]["best"]["round"]
    assert unit("accuracy.best.round") == "" and unit("accuracy.best.mean") == "%"


def test_numbers_of_a_series(run: FinishedRun) -> None:
    losses = [event["train_loss"] for event in run.events[1:]]
    assert number(run, "train_loss") == losses[-1]
    assert number(run, "train_loss:1") == losses[0]
    assert number(run, "train_loss:mean") == pytest.approx(np.mean(losses))
    assert number(run, "train_loss:min") == min(losses)
    with pytest.raises(UserError, match="after the colon"):
        number(run, "train_loss:never")
    with pytest.raises(UserError, match="no number or series"):
        number(run, "happiness")


def test_the_protocol_as_it_was_known_after_some_rounds(run: FinishedRun) -> None:
    means = [event["accuracy"]["mean"] for event in run.events]
    assert number(run, "protocol:1") == pytest.approx(100 * means[1])
    assert number(run, "protocol:3") == number(run, "protocol")


def test_client_accuracy_and_delivered_unless_trained(run: FinishedRun) -> None:
    each = [number(run, f"client_accuracy:{k}") or 0 for k in range(6)]
    assert np.mean(each) == pytest.approx(number(run, "protocol"))
    best = []
    for t in range(4):
        rows = {name: column[run.table["round"] == t] for name, column in run.table.items()}
        right = np.where(rows["started"], rows["accuracy_after"], rows["accuracy_before"])
        best.append(100 * np.average(right, weights=rows["test_size"]))
    assert number(run, "delivered_unless_trained") == pytest.approx(max(best))


def test_bytes_of_a_client_and_round(run: FinishedRun) -> None:
    both = run.summary["bytes_up"] + run.summary["bytes_down"]
    assert number(run, "bytes_per_client_round") == pytest.approx(both / 9 / 2**20)


def stored(run: FinishedRun, rows: list[list[float]], at: int = 3) -> StoredRun:
    moments = [Moment(at, f"{i},{j}", w) for i, row in enumerate(rows) for j, w in enumerate(row)]
    return StoredRun(run.config, run.summary, {"aggregation_weight": moments})


def test_partners_of_the_own_group(run: FinishedRun) -> None:
    """Three groups of two clients."""
    share = number(run, "group_found")
    assert share is not None and 0 <= share <= 1
    perfect = stored(run, torch.block_diag(*[torch.ones(2, 2)] * 3).tolist())
    assert number_of_series(perfect, "group_found:3") == 1
    assert number_of_series(perfect, "group_purity:3") == 1
    assert number_of_series(perfect, "group_found:1") is MISSING
    # Client 0 finds its partner, the others mix with nobody: none of them chose wrongly.
    few = stored(run, [[0.5, 0.5, 0, 0, 0, 0]] + [[0.0] * 6] * 5)
    assert number_of_series(few, "group_found") == pytest.approx(1 / 6)
    assert number_of_series(few, "group_purity") == 1
    # A larger weight for a stranger: one partner is chosen, the wrong one.
    wrong = stored(run, [[0.2, 0.3, 0.5, 0, 0, 0]] * 6)
    assert number_of_series(wrong, "group_found") == pytest.approx(1 / 6)  # client 3 finds 2
    assert number_of_series(wrong, "group_purity") == pytest.approx(1 / 6)


def test_what_series_tell_after_the_run_is_gone(run: FinishedRun) -> None:
    kept = {"clients.accuracy_before": run.series("clients.accuracy_before")}
    left = StoredRun(run.config, run.summary, kept)
    for client in range(6):
        told = number_of_series(left, f"client_accuracy:{client}")
        assert told == pytest.approx(number(run, f"client_accuracy:{client}"))
    assert number_of_series(left, "delivered_unless_trained") is MISSING
    assert number_of_series(left, "train_loss") is MISSING
    loss = StoredRun(run.config, run.summary, {"train_loss": run.series("train_loss")})
    assert number_of_series(loss, "train_loss:1") == number(run, "train_loss:1")
    assert number_of_series(loss, "train_loss:77") is MISSING


def test_series_survive_their_file(run: FinishedRun, tmp_path: Path) -> None:
    accuracy = run.series("accuracy")
    assert [moment.round for moment in accuracy] == [0, 1, 2, 3]
    clients = run.series("accuracy_before")
    assert {moment.item for moment in clients} == {str(k) for k in range(6)}
    round_series.write(tmp_path / "s.csv", {"accuracy": accuracy})
    round_series.write(tmp_path / "s.csv", {"m": [Moment(1, "0,1", 0.5)]})
    back = round_series.read(tmp_path / "s.csv")
    assert back["m"] == [Moment(1, "0,1", 0.5)]
    assert [m.value for m in back["accuracy"]] == pytest.approx([m.value for m in accuracy], 1e-5)


def test_of_a_matrix_a_few_rounds_are_kept(tmp_path: Path) -> None:
    matrix = [Moment(t, "0,1", 0.5) for t in range(1, 24)]
    round_series.write(tmp_path / "s.csv", {"m": matrix, "loss": [Moment(3, "", 1.0)]})
    back = round_series.read(tmp_path / "s.csv")
    assert [m.round for m in back["m"]] == [1, 2, 5, 10, 20, 23] and len(back["loss"]) == 1


def test_a_number_that_was_not_recorded_makes_the_cell_missing() -> None:
    recipe = tiny(seeds=[0], claims=[])
    cell = cells(recipe)[0]
    execute_together([cell.config], ["one"])
    results = Results(Path("r"), recipe)
    results.add([cell], [Path("one")])
    assert results.of(cell) is not None
    assert Evidence(results).values[cell.row, cell.column, "protocol"].keys() == {0}
    other = tiny(name="other", seeds=[0], claims=[], metric="train_loss:1")
    again = cells(other)[0]
    assert Results(Path("r"), other).of(again) is None
    assert results.records[0].shown("train_loss:1") is MISSING
    assert not Results(Path("r"), other).borrow(again, [results])
    third = tiny(name="third", seeds=[0], claims=[], metric="worst")  # the summary has it
    borrower = Results(Path("r"), third)
    assert borrower.borrow(cells(third)[0], [results])
    assert borrower.records[0].borrowed == "tiny"
    assert Results(Path("r"), third).of(cells(third)[0]) is not None


def test_numbers_kept_for_another_recipe_are_borrowed() -> None:
    claims = [{"id": "c", "says": "s", "kind": "best", "row": "fedavg", "metric": "protocol:2"}]
    figure = tiny(name="figure", claims=claims)
    for kept, borrowed in (["protocol:2"], True), ([], False):
        table = tiny(name="with" if kept else "without", numbers=kept, claims=[])
        [cell, *_] = cells(table)
        folder = Path(table.name)
        execute_together([cell.config], [folder])
        made = Results(Path("r"), table)
        made.add([cell], [folder])
        assert made.of(cell) is not None
        assert Results(Path("r"), figure).borrow(cells(figure)[0], [made]) == borrowed


def test_a_number_of_a_claim_is_needed_where_the_claim_looks() -> None:
    claims = [{"id": "c", "says": "s", "kind": "beats", "row": "fedavg", "over": "local",
               "columns": ["even"], "metric": "protocol:2"}]  # fmt: skip
    recipe = tiny(claims=claims)
    assert recipe.numbers_of("fedavg", "even") == {"protocol", "protocol:2"}
    for place in ("fedavg", "skewed"), ("prox", "even"):
        assert recipe.numbers_of(*place) == {"protocol"}


def test_what_fisher_information_is_worth() -> None:
    """FedAS's Figure 3: what the most informed parameters are worth, and how the trace grows."""
    base = TINY["base"] | {"protocol": "fedas", "measure": ["fisher"], "save_models": "last"}
    base |= {"model": "mlp", "stragglers": {"periods": [1], "cycle": "paper"}, "rounds": 6}
    rows = [{"id": "fedas", "method": "fedas"}]
    base |= {"method": {"lr": 0.1}}
    recipe = tiny(base=base, rows=rows, paper_values={}, claims=[], quick={})
    execute_together([cells(recipe)[0].config], ["one"])
    run = FinishedRun(Path("one"))
    found = replacement_of_run("one")
    lost = 100 * (found["intact"] - found["top"]).mean()
    assert number(run, "fisher_top_drop") == pytest.approx(lost)
    by_lot = number(run, "fisher_random_drop")
    assert by_lot is not None and by_lot < lost
    trace = {(m.round, m.item): m.value for m in run.series("clients.fisher_trace")}
    late = [k for k in range(4) if not all(k in e["started"] for e in run.events[1:])]
    assert late == [0]
    first, last = (np.mean([trace[t, str(k)] for k in (1, 2, 3)]) for t in (1, 6))
    assert number(run, "fisher_growth") == pytest.approx(last / first)
