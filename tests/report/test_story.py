"""The report says what happened: a verdict with its test, lines one can tell apart, rows that are
clients, rounds by their number."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import wilcoxon

from idiolect import report
from idiolect.report import log_plots, page, plots, run_groups, significance, tables, verdict
from idiolect.runs import execute as runs
from tests.runs.fake_simulation import FakeSimulation, N, resolved
from tests.ui.pages import Errors


def add_run(out: Path, start: torch.Tensor, **changes: Any) -> None:
    def made(config: Any) -> FakeSimulation:
        return FakeSimulation(config["rounds"], weights=start.clone().clamp(0, 1))

    runs.execute(resolved(**{"rounds": 2, **changes}), out, build=made)


def method(out: Path, name: str, lift: float, seeds: tuple[int, ...] = (0, 1, 2)) -> None:
    for seed in seeds:
        noise = 0.002 * torch.sin(torch.arange(N) * 1.3 + seed)
        add_run(out / f"{name}-seed{seed}", torch.linspace(0.2, 0.4, N) + lift + noise,
                method={"name": name}, seed=seed)  # fmt: skip


def test_the_verdict_names_the_best_the_test_and_the_harmed(tmp_path: Path) -> None:
    method(tmp_path, "local", 0.0)
    method(tmp_path, "fedavg", -0.1)
    method(tmp_path, "fedper", 0.1)
    found = report.find([tmp_path])
    told = verdict.verdict(run_groups.groups(found), found)
    assert told.startswith("fedper is best: ")
    assert "8.1 points above local, the next" in told
    assert "better than every other method beyond chance (Wilcoxon signed-rank test" in told
    assert "18 pairs of a client and a seed, p < 0.001)" in told
    assert told.endswith("None of its 6 clients is worse off than when it trains alone.")


def test_the_verdict_tells_equal_methods_and_whom_the_best_one_harms(tmp_path: Path) -> None:
    add_run(tmp_path / "local", torch.linspace(0.2, 0.4, N), method={"name": "local"})
    mixed = torch.linspace(0.2, 0.4, N) + torch.tensor([-0.1, 0.05, 0.05, 0.05, -0.05, 0.05])
    add_run(tmp_path / "fedavg", mixed, method={"name": "fedavg"})
    found = report.find([tmp_path])
    told = verdict.verdict(run_groups.groups(found), found)
    assert "not distinguishable from it: local" in told
    assert "It harms 2 of 6 clients, compared with training alone: client 0 (-8." in told
    html, _ = page.views(found)
    row = next(line for line in html.split("<tr>") if "</i>local" in line)
    assert "≈" in row


def test_a_method_that_diverged_is_not_the_best(tmp_path: Path) -> None:
    for name, lift in (("local", 0.0), ("fedavg", -0.1), ("fedper", 0.1)):
        method(tmp_path, name, lift)
    for name in ("fedper", "local", "fedavg"):
        for file in tmp_path.glob(f"{name}-*/summary.json"):
            file.write_text(json.dumps(json.loads(file.read_text()) | {"diverged": True}))
        found = report.find([tmp_path])
        sets = run_groups.groups(found)
        told = verdict.verdict(sets, found)
        if name == "fedper":
            assert told.startswith("local is best: ") and "above fedavg, the next" in told
            assert told.endswith("Diverged, and not compared: fedper.")
            assert significance.standings(sets) == {"local": "best", "fedavg": "worse"}
    assert told.startswith("Diverged: ") and "--set method.lr=" in told


def test_few_pairs_are_no_evidence() -> None:
    assert significance._p(np.full(5, 0.5)) is None
    assert significance._p(np.zeros(20)) == 1.0
    by_one = np.array([9.0] + [-0.1] * 20)  # the better mean, but nearly everybody is worse off
    assert by_one.mean() > 0 and significance._p(by_one) == 1.0
    clear = np.linspace(0.1, 1, 20)
    assert significance._p(clear) == pytest.approx(wilcoxon(clear, method="approx").pvalue)
    corrected = significance._holm({"a": 0.01, "b": 0.04, "c": 0.03})
    assert corrected == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})


def styles(sets: list[run_groups.Group]) -> list[tuple[int, int]]:
    return [(g.colour, g.dash) for g in sets if g.colour != run_groups.FADED]


def test_many_methods_keep_colours_for_the_best(tmp_path: Path) -> None:
    from idiolect.methods import REGISTRY

    for n, name in enumerate(sorted(REGISTRY)[:29]):
        method(tmp_path, name, 0.01 * n if name != "local" else 0.0, seeds=(0,))
    found = report.find([tmp_path])
    sets = run_groups.groups(found)
    assert len(styles(sets)) == len(set(styles(sets)))
    others = sorted((g for g in sets if g.method != "local"), key=lambda g: -(g.accuracy or 0))
    assert all(g.colour < run_groups.COLOURS for g in others[: run_groups.COLOURS])
    assert all(g.colour == run_groups.FADED for g in others[run_groups.COLOURS :])
    figure = plots.accuracy_over_rounds(sets, "accuracy")
    assert figure is not None
    named = [trace["name"] for trace in figure["data"] if trace["showlegend"]]
    assert len(named) == len(set(named)) <= run_groups.COLOURS + 1
    html, _ = page.views(found)
    assert 'class="find"' in html


def test_local_lines_of_a_sweep_differ_and_titles_are_short(tmp_path: Path) -> None:
    for name in ("local", "fedavg"):
        for lr in (0.01, 0.03, 0.1, 0.3):
            start = torch.linspace(0.2, 0.4, N) + lr / 10
            add_run(tmp_path / f"{name}{lr}", start, method={"name": name, "lr": lr})
    found = report.find([tmp_path])
    sets = run_groups.groups(found)
    assert len(set(styles(sets))) == 8
    assert page.heading(found) == "Idiolect: local (4 settings), fedavg (4 settings)"


def test_vectors_stand_at_client_ids_and_round_numbers() -> None:
    nan = float("nan")
    logged = {3: torch.tensor([0.5, nan, 0.1]), 4: torch.tensor([nan, 0.2, nan])}
    made = log_plots.matrix(logged)
    assert made is not None
    heat = made[0]["data"][0]
    assert heat["x"] == [3, 4] and heat["y"] == [0, 1, 2]
    assert heat["z"] == [[0.5, None], [None, 0.2], [0.1, None]]
    assert made[1].startswith("rounds 3 to 4")


def test_squares_have_a_slider_and_an_order_by_similarity() -> None:
    blocks = torch.tensor([0, 1, 0, 1, 0, 1])
    same = (blocks[:, None] == blocks[None]).double()
    made = log_plots.matrix({1: torch.zeros(6, 6), 5: same})
    assert made is not None
    figure = made[0]
    assert figure["rounds"] == [1, 5] and figure["frames"][0] != figure["frames"][1]
    together = [int(blocks[n]) for n in figure["order"]]
    assert together in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])
    large = log_plots.matrix({n: torch.rand(150, 150) for n in range(40)})
    assert large is not None
    assert sum(len(f) ** 2 for f in large[0]["frames"]) <= log_plots.MOST_CELLS
    oblong = log_plots.matrix({1: torch.rand(6, 2)})
    assert oblong is not None and "order" not in oblong[0]
    wild = torch.full((4, 4), 1e308, dtype=torch.float64)
    wild[0, 1] = float("inf")
    assert log_plots.matrix({1: wild}) is not None


def test_late_clients_are_shown_by_round(tmp_path: Path) -> None:
    class Late(FakeSimulation):
        def step(self) -> Any:
            done = super().step()
            done.clients["staleness"][done.started[0]] = 2
            return done

    runs.execute(resolved(rounds=3), tmp_path / "run", build=lambda c: Late(c["rounds"]))
    figure = log_plots.staleness(report.load(tmp_path / "run"))
    assert figure is not None
    heat = figure["data"][0]
    assert heat["x"] == [0, 1, 2, 3] and heat["y"] == list(range(N))
    assert heat["z"][1][1] == 2 and heat["z"][0][0] is None
    html, _ = page.views([report.load(tmp_path / "run")])
    assert "Who answered late" in html


def test_all_seeds_are_in_every_curve(tmp_path: Path) -> None:
    method(tmp_path, "fedavg", 0.0, seeds=(0,))
    add_run(tmp_path / "other", torch.full((N,), 0.9), method={"name": "fedavg"}, seed=1)
    found = report.find([tmp_path])
    sets = run_groups.groups(found)
    for figure in (plots.accuracy_over_bytes(sets), plots.accuracy_over_seconds(sets)):
        assert figure is not None
        mean = next(trace for trace in figure["data"] if "band" not in trace)
        ends = [100 * run.events[-1]["accuracy"]["mean"] for run in found]
        assert mean["y"][-1] == pytest.approx(np.mean(ends), abs=0.01)
        assert {trace.get("band") for trace in figure["data"]} == {None, "seeds", "p10"}


def test_axes_show_100_and_are_not_set_by_one_client() -> None:
    axis = plots.percent_axis([41.0, 97.0])
    assert axis["dtick"] == 20 and axis["range"][0] < 40 < 100 < axis["range"][1]
    low = plots.percent_axis([12.0, 31.0])
    assert low["range"][1] == 41 and low["dtick"] == 10
    gains = [*np.linspace(8, -4, 99), -100.0]
    shown = plots._without_outliers([{"y": gains}], "gain over local, points")
    assert shown["range"][0] > -10 and "1 outside" in shown["title"]["text"]
    assert plots._without_outliers([{"y": list(np.linspace(8, -4, 99))}], "") == {}


def test_no_folder_of_this_machine_is_told(tmp_path: Path) -> None:
    method(tmp_path / "place", "fedavg", 0.0, seeds=(0,))
    run = report.load(tmp_path / "place/fedavg-seed0")
    run.env["command"] = (
        "/home/somebody/.venv/bin/idiolect run fedavg --data /home/somebody/a/b.csv --out=/x/y/z"
    )
    run.config["init"] = "/home/somebody/start/w.safetensors"
    html, _ = page.views([run])
    assert str(tmp_path) not in html and "/home/somebody" not in html
    assert "<pre>idiolect run fedavg --data …/b.csv --out=…/z</pre>" in html
    assert "place/fedavg-seed0" in html and "init: …/w.safetensors" in html


def test_sites_are_called_by_their_names(tmp_path: Path) -> None:
    add_run(tmp_path / "local", torch.linspace(0.2, 0.4, N), method={"name": "local"})
    worse = torch.linspace(0.2, 0.4, N) + torch.tensor([-0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    add_run(tmp_path / "fedavg", worse, method={"name": "fedavg"})
    (tmp_path / "fedavg/flower").mkdir()
    lines = '{"what": "enrolled", "client": 0, "name": "<b>Ulm\\u001b"}\n[1]\n{"client": "x"\n'
    (tmp_path / "fedavg/flower/journal.jsonl").write_text(lines)
    html, _ = page.views(report.find([tmp_path]))
    assert "&lt;b&gt;Ulm\\x1b (-8." in html and "<b>Ulm" not in html


def test_every_row_can_be_sorted_and_the_best_comes_first(tmp_path: Path) -> None:
    method(tmp_path, "local", 0.0, seeds=(0,))
    method(tmp_path, "fedper", 0.2, seeds=(0,))
    html, _ = page.views(report.find([tmp_path]))
    body = html.split('<table class="summary')[1].split("</table>")[0]
    assert body.index("</i>fedper") < body.index("</i>local")
    values = re.findall(r'<td[^>]* data-value="([^"]*)"', body)
    assert len(values) == 2 * (len(tables.COLUMNS) - len(tables.IF_ANY) - 1)
    assert 'aria-sort="descending"' in body


def test_significance_decides_what_is_bold(tmp_path: Path) -> None:
    """Bold: the best and what a test over clients and seeds cannot tell from it, in every form."""
    for name, lift in (("local", 0.0), ("fedavg", -0.1), ("fedper", 0.1)):
        method(tmp_path, name, lift)
    for seed in (0, 1, 2):  # better for some clients, worse for others, and so not worse in all
        mixed = torch.linspace(0.3, 0.5, N) + 0.02 * torch.tensor([1.0, -1, 1, -1, 1, -1.2])
        out = tmp_path / f"ditto-seed{seed}"
        add_run(out, mixed, method={"name": "ditto"}, seed=seed)
    found = report.find([tmp_path])
    table = report.rows(found)
    stand = {row["method"]: row["standing"] for row in table}
    assert stand == {"local": "worse", "fedavg": "worse", "fedper": "best", "ditto": "equal"}
    html, _ = page.views(found)
    bold = [line for line in html.split("<tr>") if 'class="top"' in line]
    assert ["</i>fedper" in line or "</i>ditto" in line for line in bold] == [True, True]
    assert "Wilcoxon signed-rank test, Holm-corrected" in html
    marked = [line for line in report.render(found, "md").splitlines() if "**" in line]
    assert {line.split(" ")[1] for line in marked} == {"fedper", "ditto"}
    assert report.render(found, "latex").count(r"\textbf{") == 2
    view = report.terminal(table, 200)
    assert "Holm-corrected" in view.caption
    column = view.columns[1]
    styles = {text.plain: str(text.style) for text in column.cells}
    assert sorted(styles.values()) == ["", "", "bold", "bold"]


def test_few_pairs_make_nothing_bold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method(tmp_path, "local", 0.0, seeds=(0,))
    method(tmp_path, "fedper", 0.2, seeds=(0,))
    monkeypatch.setattr(significance, "FEWEST_PAIRS", 7)
    found = report.find([tmp_path])
    html, _ = page.views(found)
    assert 'class="top"' not in html and "Nothing is bold" in html
    assert "nothing is bold" in report.terminal(report.rows(found), 200).caption


def test_another_metric_has_its_own_name_and_unit_everywhere(tmp_path: Path) -> None:
    for name, lift in (("local", 0.2), ("fedavg", 0.0)):
        start = torch.linspace(0.2, 0.4, N) + lift
        runs.execute(
            resolved(method={"name": name}, rounds=2),
            tmp_path / name,
            build=lambda c, s=start: Errors(c["rounds"], weights=s.clone()),
        )
    found = report.find([tmp_path])
    html, figures = page.views(found)
    told = verdict.verdict(run_groups.groups(found), found)
    assert told.startswith("fedavg is best: ") and "mean rmse over clients" in told
    assert " rmse below local" in told and "points" not in told
    assert "points" not in html and "accuracy" not in html.lower().replace("data-", "")
    drawn = json.dumps(figures)
    assert "points" not in drawn and "accuracy" not in drawn
    assert not re.search(r"(?<!clients,) %(?!\{)", drawn)
    assert "gain over local, rmse" in drawn and "<h2>rmse over rounds" in html
    assert "rmse" in repr(found[0]) and "accuracy" not in repr(found[0])
    assert "in the unit of rmse" in html


def test_late_work_is_marked_where_weights_are_drawn(tmp_path: Path) -> None:
    class Late(FakeSimulation):
        def step(self) -> Any:
            done = super().step()
            done.clients["staleness"][done.started[0]] = 2
            return done

    runs.execute(resolved(rounds=3), tmp_path / "run", build=lambda c: Late(c["rounds"]))
    run = report.load(tmp_path / "run")
    made = log_plots.matrix(run.matrices["aggregation_weight"], run)
    assert made is not None and "× arrived late" in made[1]
    marks = made[0]["data"][1]
    rows = zip(run.table["round"], run.table["client"], run.table["staleness"], strict=True)
    late = {(int(t), int(k)) for t, k, stale in rows if stale > 0}
    assert set(zip(marks["x"], marks["y"], strict=True)) == late and len(late) == 3


def test_unseen_clients_and_validation_have_curves(tmp_path: Path) -> None:
    def made(config: Any) -> FakeSimulation:
        return FakeSimulation(config["rounds"], validation=True, unseen=2)

    runs.execute(resolved(rounds=3), tmp_path / "run", build=made)
    run = report.load(tmp_path / "run")
    html, figures = page.views([run])
    assert "Unseen clients and validation" in html
    sets = run_groups.groups([run])
    unseen = plots.unseen_over_rounds(sets)
    assert unseen in figures and plots.validation_over_rounds(sets) in figures
    assert unseen is not None
    last = (run.table["round"] == 3) & run.table["unseen"]
    mean = 100 * run.table["accuracy_before"][last].mean()
    assert unseen["data"][0]["y"][-1] == pytest.approx(mean, abs=1e-3)
    plain = FakeSimulation(3)
    runs.execute(resolved(rounds=3), tmp_path / "plain", build=lambda c: plain)
    assert "Unseen clients" not in page.views([report.load(tmp_path / "plain")])[0]
