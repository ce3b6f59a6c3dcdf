"""`idiolect compare`, on the real simulation with a handful of rounds."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idiolect import report
from idiolect.runs import directory
from idiolect.simulation.requests import Fit
from idiolect.simulation.side_by_side import Sweep
from tests.cli.calls import TINY, call


def test_compare_reports_and_skips_what_is_done() -> None:
    words = ["compare", "local", "fedavg", *TINY, "--seeds", "0,1", "--out", "c"]
    result = call(*words, "--set", "fedavg.epochs=2")
    assert result.exit_code == 0, result.output
    assert "gain over local" in result.stdout and "report.html" in result.stdout
    for name in ("compare.csv", "compare.md", "report.html", "fedavg-seed1/summary.json"):
        assert (Path("c") / name).exists()
    assert directory.read_config(Path("c/fedavg-seed0"))["method"]["epochs"] == 2
    again = call(*words, "--set", "fedavg.epochs=2", "--json")
    assert again.stderr.count("already finished") == 4
    assert [row["method"] for row in json.loads(again.stdout)] == ["local", "fedavg"]
    other = call(*words, "--set", "fedavg.epochs=3")
    assert other.exit_code == 2 and "another run" in other.stderr


def test_a_sweep_has_a_run_and_a_row_for_every_point() -> None:
    words = ["compare", "fedavg", "fedprox", *TINY, "--seeds", "0,1", "--out", "s"]
    words += ["--sweep", "fedprox.lr=0.01,5e-2", "--sweep", "mu=0.1,1", "--sweep", "epochs=1,2"]
    result = call(*words, "--set", "fedavg.lr=0.1", "--json")
    assert result.exit_code == 0, result.output
    points = [f"lr={lr} epochs={e} mu={mu}" for lr in (0.01, 0.05) for mu in (0.1, 1.0)
              for e in (1, 2)]  # fmt: skip
    labels = [row["method"] for row in json.loads(result.stdout)]
    assert labels == ["fedavg epochs=1", "fedavg epochs=2", *(f"fedprox {p}" for p in points)]
    assert all(row["seeds"] == [0, 1] for row in json.loads(result.stdout))
    assert "| fedprox lr=0.05 epochs=2 mu=1.0 |" in Path("s/compare.md").read_text()
    method = directory.read_config(Path("s/fedprox-lr0.05-mu1.0-epochs2-seed1"))["method"]
    assert (method["lr"], method["mu"], method["epochs"]) == (0.05, 1.0, 2)
    assert directory.read_config(Path("s/fedavg-epochs2-seed0"))["method"]["lr"] == 0.1
    assert "fedprox lr 0.01,0.05 mu 0.1,1.0 seed 0,1" in result.stderr  # four points in a stack
    again = call(*words, "--set", "fedavg.lr=0.1")
    assert again.stderr.count("already finished") == 20


def test_an_interrupted_sweep_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command again, after a stop in the middle, ends with the bits of one that ran
    through."""
    words = ["compare", "fedprox", *TINY, "--rounds", "4", "--checkpoint-every", "2"]
    words += ["--sweep", "mu=0.1,1", "--sweep", "momentum=0.0,0.5"]
    assert call(*words, "--out", "whole").exit_code == 0
    taken, step = [], Sweep.step

    def stopping(self: Sweep) -> Any:
        if len(taken) == 3:
            raise KeyboardInterrupt
        taken.append(1)
        return step(self)

    with monkeypatch.context() as patched:
        patched.setattr(Sweep, "step", stopping)
        stopped = call(*words, "--out", "part")
    assert stopped.exit_code == 130 and "after round 2" in stopped.stderr
    assert call(*words, "--out", "part").exit_code == 0
    names = sorted(path.name for path in Path("whole").iterdir() if path.is_dir())
    assert len(names) == 4
    for name in names:
        ours, theirs = (report.load(Path(out) / name) for out in ("part", "whole"))
        assert [event["round"] for event in ours.events] == [0, 1, 2, 3, 4]
        for column, values in theirs.table.items():
            np.testing.assert_array_equal(ours.table[column], values, err_msg=f"{name} {column}")


def test_any_setting_can_be_swept() -> None:
    """Split, participation, clients and rounds too; each run has the numbers it has alone."""
    small = ["--clients", "4", "--rounds", "2", "--model", "linear", "--dtype", "float64"]
    words = ["compare", "fedavg", *small, "--out", "s", "--json"]
    words += ["--sweep", "split.alpha=0.1,2", "--sweep", "participation=0.5,1"]
    result = call(*words)
    assert result.exit_code == 0, result.output
    names = [f"fedavg-split.alpha{a}-participation{p}-seed0" for a in (0.1, 2.0) for p in (0.5, 1)]
    assert sorted(path.parent.name for path in Path("s").glob("*/summary.json")) == sorted(names)
    assert len(json.loads(result.stdout)) == 4
    one = ["run", "fedavg", *small, "--out", "one", "--participation", "0.5"]
    assert call(*one, "--set", "split.alpha=2").exit_code == 0
    ours, theirs = report.load(Path("s") / names[2]), report.load("one")
    assert ours.config == theirs.config
    for column, values in theirs.table.items():
        np.testing.assert_allclose(ours.table[column], values, atol=1e-9, err_msg=column)


def test_a_sweep_over_clients_and_rounds() -> None:
    words = ["compare", "local", "fedavg", "--model", "linear", "--out", "s", "--seeds", "0,1"]
    result = call(*words, "--sweep", "clients=3,5", "--sweep", "rounds=1,2")
    assert result.exit_code == 0, result.output
    config = directory.read_config(Path("s/fedavg-split.clients5-rounds2-seed1"))
    assert (config["split"]["clients"], config["rounds"]) == (5, 2)
    assert "fedavg split.clients=5 rounds=2" in Path("s/compare.md").read_text()


def test_validation_and_unseen_clients_are_columns_where_there_are_any() -> None:
    words = ["compare", "fedavg", "--model", "linear", "--rounds", "1", "--clients", "4"]
    assert call(*words, "--out", "without").exit_code == 0
    assert "unseen" not in Path("without/compare.md").read_text()
    more = ["--set", "split.unseen=1", "--set", "split.val_share=0.2"]
    assert call(*words, *more, "--out", "with").exit_code == 0
    assert "| validation % | unseen % |" in Path("with/compare.md").read_text()
    [row] = csv.DictReader(Path("with/compare.csv").read_text().splitlines())
    [summary] = [json.loads(f.read_text()) for f in Path("with").rglob("summary.json")]
    assert float(row["unseen"]) == pytest.approx(summary["unseen"]["last"]["mean"])
    assert 0 <= float(row["validation"]) <= 1


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        ("split.alpah=1,2", "did you mean 'alpha'"),
        ("seed=0,1", "--seeds"),
        ("splt.alpha=1", "did you mean 'split'"),
        ("participation=0.5,0.5", "different values"),
        ("rounds=0,1", "rounds must be at least 1"),
        ("year=1,2", "unknown hyperparameter of fedavg 'year'"),
    ],
)
def test_a_sweep_that_cannot_be_is_one_line(sweep: str, said: str) -> None:
    result = call("compare", "fedavg", "--model", "linear", "--out", "s", "--sweep", sweep)
    assert result.exit_code == 2 and said in result.stderr, result.output


def test_only_hyperparameters_are_named_for_a_sweep() -> None:
    result = call("compare", "fedavg", "--out", "s", "--sweep", "zz=1,2")
    assert result.exit_code == 2 and "batch_size" in result.stderr
    for about in ("adapt_only", "also_sent", "paper", "year"):
        assert about not in result.stderr


def test_a_grid_of_fine_tuning_trains_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points that differ only in fine-tuning share the trained model, with the numbers of
    separate runs."""
    fitted = []
    do = Fit.do

    def counting(self: Fit, *args: Any) -> Any:
        fitted.append(len(self.ids))
        return do(self, *args)

    words = ["compare", "fedavg_ft", *TINY, "--seeds", "0,1", "--dtype", "float64"]
    grid = ["--sweep", "ft_lr=0.1,0.01", "--sweep", "ft_steps=1,3", "--sweep", "ft_batch_size=8,16"]
    with monkeypatch.context() as patched:
        patched.setattr(Fit, "do", counting)
        result = call(*words, "--out", "s", *grid)
    assert result.exit_code == 0, result.output
    assert fitted == [8, 8]  # two rounds of four clients and two seeds, for eight points
    name = "fedavg_ft-ft_lr0.01-ft_steps3-ft_batch_size8-seed1"
    one = ["run", "fedavg_ft", *TINY, "--dtype", "float64", "--seed", "1", "--out", "one"]
    for item in ("ft_lr=0.01", "ft_steps=3", "ft_batch_size=8"):
        one += ["--set", f"method.{item}"]
    assert call(*one).exit_code == 0
    ours, theirs = report.load(Path("s") / name), report.load("one")
    assert ours.config == theirs.config
    for column, values in theirs.table.items():
        np.testing.assert_allclose(ours.table[column], values, atol=1e-9, err_msg=column)


def test_methods_do_the_same_local_work_and_the_table_says_what_they_did() -> None:
    words = ["compare", "local", "fedavg", "fedas", "pflego", *TINY[:4], "--model", "mlp"]
    result = call(*words, "--out", "c", "--json")
    assert result.exit_code == 0, result.output
    rows = {row["method"]: row for row in json.loads(result.stdout)}
    assert rows["local"]["steps"] == rows["fedavg"]["steps"] > 0
    assert rows["local"]["samples"] == rows["fedavg"]["samples"]
    assert rows["fedas"]["samples"] == 2 * rows["fedavg"]["samples"]  # it aligns for an epoch first
    assert [row["lr"] for row in rows.values()] == [0.01, 0.01, 0.01, None]
    assert rows["pflego"]["steps"] == 2 * 4 * 50  # rounds, clients, tau
    shown = call(*words, "--out", "c")
    assert "samples" in shown.stdout and "steps" in shown.stdout
    assert "pflego: no local SGD" in shown.stderr
    own = call(*words, "--out", "p", "--as-published")
    assert own.exit_code == 0 and "no local SGD" not in own.stderr
    assert directory.read_config(Path("p/fedas-seed0"))["method"]["epochs"] == 5


def test_tuning_reports_what_was_chosen() -> None:
    words = ["compare", "local", "fedavg", *TINY, "--tune", "lr=0.0001,0.3", "--out", "t"]
    refused = call(*words)
    assert refused.exit_code == 2 and "split.val_share" in refused.stderr
    result = call(*words, "--set", "split.val_share=0.3", "--json")
    assert result.exit_code == 0, result.output
    assert [(r["method"], r["lr"]) for r in json.loads(result.stdout)] == [
        ("local", 0.3),
        ("fedavg", 0.3),
    ]
    assert "local: lr=0.3 of 2 trials" in result.stderr
    assert len(list(Path("t/trials").iterdir())) == 4
    assert [run.path.name for run in report.find([Path("t")])] == ["fedavg-seed0", "local-seed0"]
    both = call(*words, "--sweep", "epochs=1,2")
    assert both.exit_code == 2 and "--tune and --sweep" in both.stderr


def test_a_method_that_cannot_do_the_task_is_told_before_the_first_run() -> None:
    rows = [f"{k / 10},{k % 7},s{k % 2}" for k in range(24)]
    Path("t.csv").write_text("\n".join(["a,label,client", *rows]))
    words = ["--data", "t.csv", "--task", "regression", "--rounds", "1", "--out", "c"]
    done = call("compare", "local", "fedproto", *words)
    assert done.exit_code == 2 and "fedproto needs samples with one class each" in done.stderr
    assert not Path("c").exists()


def test_a_settings_file_of_one_method_gives_all_the_same_local_work() -> None:
    file = "rounds: 1\nmodel: linear\nsplit: {clients: 4}\n"
    Path("mine.yaml").write_text(file + "method: {name: fedavg, lr: 0.1}\n")
    words = ["--config", "mine.yaml", "--json"]
    result = call("compare", "local", "fedavg", *words, "--out", "c")
    assert result.exit_code == 0, result.output
    assert [row["lr"] for row in json.loads(result.stdout)] == [0.1, 0.1]
    again = call("compare", "local", "--config", "c/fedavg-seed0/config.yaml", "--out", "d")
    assert again.exit_code == 0, again.output
    assert directory.read_config(Path("d/local-seed0"))["method"]["lr"] == 0.1


def test_what_a_settings_file_says_about_one_method_is_left_out_for_others_with_a_warning() -> None:
    file = "rounds: 1\nmodel: linear\nsplit: {clients: 4}\n"
    method = "method: {name: fedprox, lr: 0.1, mu: 0.7, momentum: 0.9, clip: 1.0}\n"
    Path("mine.yaml").write_text(file + method)
    words = ["--config", "mine.yaml", "--set", "fedavg.momentum=0.5", "--json"]
    result = call("compare", "local", "fedavg", "fedprox", *words, "--out", "c")
    assert result.exit_code == 0, result.output
    [said] = [line for line in result.stderr.splitlines() if "left out" in line]
    assert said == (
        "warning: mine.yaml has settings of fedprox; left out for local: mu, momentum, clip; for "
        "fedavg: mu, clip (give them with --set method.KEY=…)"
    )
    alone = call("compare", "fedprox", "--config", "mine.yaml", "--out", "d")
    assert alone.exit_code == 0 and "left out" not in alone.stderr


@pytest.mark.parametrize(
    "words", [["compare", "local"], ["advise"], ["demo"], ["recipe", "fedas-table3"]]
)
def test_an_empty_list_of_seeds_is_refused(words: list[str]) -> None:
    result = call(*words, "--seeds", "", "--out", "c")
    assert result.exit_code == 2 and "--seeds takes whole numbers" in result.stderr, result.output
    assert not Path("c").exists()


def test_a_finished_run_of_another_schedule_is_not_taken_for_this_one() -> None:
    """The settings name the file alone; what is in it made the run."""
    Path("who.json").write_text("[[0, 1], [2, 3]]")
    words = ["compare", "fedavg", *TINY, "--schedule", "who.json", "--out", "c"]
    assert call(*words).exit_code == 0
    Path("who.json").write_text("[[0, 1], [2, 1]]")
    other = call(*words)
    assert other.exit_code == 2 and "changed since the run started (c/fedavg-seed0)" in other.stderr
    assert len(other.stderr.strip().splitlines()) == 1
    Path("who.json").unlink()
    assert "who.json" in call(*words).stderr


def test_new_runs_are_not_put_beside_runs_on_other_data() -> None:
    """The settings name the file alone; finished runs are read again without it."""
    rows = [f"{k / 10},{k % 2},s{k % 2}" for k in range(24)]
    Path("t.csv").write_text("\n".join(["a,label,client", *rows]))
    words = ["--data", "t.csv", "--rounds", "1", "--out", "c"]
    assert call("compare", "local", "fedavg", *words).exit_code == 0
    Path("t.csv").write_text("\n".join(["a,label,client", *reversed(rows)]))
    assert call("compare", "local", "fedavg", *words).exit_code == 0
    more = call("compare", "local", "fedavg", "fedprox", *words)
    assert more.exit_code == 2 and "t.csv changed since the run started (c/local-" in more.stderr
    assert len(more.stderr.strip().splitlines()) == 1 and not Path("c/fedprox-seed0").exists()
