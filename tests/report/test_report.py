"""Reports from run directories alone: tables, page, unfinished runs, missing plotly."""

import builtins
import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from idiolect import report
from idiolect.errors import UserError
from idiolect.report import plots, tables
from idiolect.runs import execute as runs
from tests.runs.fake_simulation import FakeSimulation, N, build, resolved


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """local and fedavg with two seeds each, and a fedper that is not finished."""
    out = tmp_path_factory.mktemp("runs")
    for method, lift in (("local", 0.0), ("fedavg", 0.3)):
        for seed in (0, 1):
            start = torch.linspace(0.1, 0.5, N) + lift * torch.linspace(-1, 1, N) + 0.01 * seed

            def lifted(config: Any, start: torch.Tensor = start) -> FakeSimulation:
                return FakeSimulation(config["rounds"], weights=start.clamp(0, 1))

            config = resolved(method={"name": method}, seed=seed)
            runs.execute(config, out / f"{method}-seed{seed}", build=lifted)

    class Stops(FakeSimulation):
        def step(self) -> Any:
            if self.round == 5:
                raise ZeroDivisionError
            return super().step()

    with pytest.raises(ZeroDivisionError):
        config = resolved(method={"name": "fedper"})
        runs.execute(config, out / "fedper-seed0", build=lambda c: Stops(c["rounds"]))
    return out


def test_rows_gather_seeds_and_compare_with_local(folder: Path) -> None:
    rows = {row["method"]: row for row in report.rows(report.find([folder]))}
    assert set(rows) == {"local", "fedavg", "fedper"}
    assert rows["fedavg"]["seeds"] == [0, 1] and rows["fedavg"]["accuracy_std"] > 0
    assert rows["local"]["gain"] is None and rows["fedavg"]["gain"] is not None
    assert 0 < rows["fedavg"]["harmed"] < 1
    assert rows["fedper"]["finished"] is False and rows["fedper"]["rounds"] == 5


def test_text_formats(folder: Path) -> None:
    found = report.find([folder])
    lines = report.render(found, "md").splitlines()
    assert len(lines) == 2 + 3 and len({line.count("|") for line in lines}) == 1
    assert "fedper (unfinished, round 5)" in lines[-1] or "unfinished" in "".join(lines)
    parsed = list(csv.DictReader(io.StringIO(report.render(found, "csv"))))
    assert {row["method"] for row in parsed} == {"local", "fedavg", "fedper"}
    assert 0 < float(parsed[0]["accuracy"]) <= 1
    latex = report.render(found, "latex")
    assert latex.count(r"\\") == 4 and r"\%" in latex


def test_page_is_whole_escaped_and_needs_no_network(folder: Path) -> None:
    pytest.importorskip("plotly")
    page = report.html(report.find([folder]), title="<b>mine & yours</b>")
    assert "<title>&lt;b&gt;mine &amp; yours&lt;/b&gt;</title>" in page
    assert "Not finished yet: fedper-seed0 (round 5 of 12)" in page
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", page)
    figures = json.loads(page.split('id="figures">')[1].split("</script>")[0])
    assert len(figures) >= 5 and all(figure["data"] for figure in figures)
    for heading in (
        "Summary",
        "Accuracy over rounds",
        "Who gains",
        "traffic",
        "logged",
        "Settings",
    ):
        assert heading in page
    assert page.count("Plotly.react") >= 1


def test_one_run_without_local(folder: Path) -> None:
    pytest.importorskip("plotly")
    page = report.html([report.load(folder / "fedavg-seed0")])
    assert "No <code>local</code> run" in page


def test_a_run_killed_before_its_first_checkpoint(tmp_path: Path) -> None:
    class Stops(FakeSimulation):
        def step(self) -> Any:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        runs.execute(resolved(), tmp_path / "run", build=lambda c: Stops(c["rounds"]))
    found = [report.load(tmp_path / "run")]
    assert not found[0].finished and "unfinished" in report.render(found, "md")
    pytest.importorskip("plotly")
    assert "Not finished yet" in report.html(found)


def test_without_plotly_the_fix_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.startswith("plotly"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(UserError, match="pip install"):
        report.html([report.load(folder / "local-seed0")])


def test_same_method_with_two_settings_stays_apart(tmp_path: Path) -> None:
    for name, lr in (("slow", 0.01), ("fast", 0.1)):
        config = resolved(method={"name": "fedavg", "lr": lr}, rounds=3)
        runs.execute(config, tmp_path / name, build=build)
    labels = [group.label for group in tables.groups(report.find([tmp_path]))]
    assert labels == ["fedavg lr=0.1", "fedavg lr=0.01"]


def test_a_point_is_compared_with_local_of_the_same_point(tmp_path: Path) -> None:
    for name in ("local", "fedavg"):
        for lr in (0.01, 0.1):
            config = resolved(method={"name": name, "lr": lr}, rounds=3)
            runs.execute(config, tmp_path / f"{name}-lr{lr}", build=build)
    found = report.find([tmp_path])
    for run in found:
        local = tables.reference(run, found)
        if run.method == "fedavg":
            assert local is not None and local.config["method"]["lr"] == run.config["method"]["lr"]
        else:
            assert local is None


def test_settings_that_differ_in_much_are_called_by_their_folder(tmp_path: Path) -> None:
    more = {"lr": 0.2, "epochs": 2, "batch_size": 4, "momentum": 0.5}
    for name, changes in (("usual", {}), ("other", more)):
        config = resolved(method={"name": "fedavg", **changes}, rounds=3)
        runs.execute(config, tmp_path / name, build=build)
    labels = [group.label for group in tables.groups(report.find([tmp_path]))]
    assert labels == ["fedavg (other)", "fedavg (usual)"]


def test_folders_without_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        report.find([tmp_path])
    with pytest.raises(UserError, match="does not exist"):
        report.find([tmp_path / "none"])


def test_matrices_of_every_shape() -> None:
    square = plots.matrix({3: torch.rand(300, 300)})
    assert square is not None and len(square[0]["data"][0]["z"]) == plots.LARGEST_MATRIX
    vector = plots.matrix({1: torch.rand(6), 2: torch.rand(6)})
    assert vector is not None and len(vector[0]["data"][0]["z"]) == 6
    scalar = plots.matrix({1: torch.tensor(0.5), 2: torch.tensor(float("nan"))})
    assert scalar is not None
    assert plots.matrix({1: torch.rand(2, 3, 4)}) is None
