"""The figures' axes: what they begin and end with, and which ticks they have."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from idiolect import report
from idiolect.report import log_plots, plots, run_groups
from tests.report.test_story import add_run


def split_of(counts: list[list[int]], names: dict[int, str] | None = None) -> plots.Figure:
    about = {"clients": len(counts), "classes": len(counts[0]), "counts": counts}
    run: Any = SimpleNamespace(class_counts=about, names=names or {})
    made = log_plots.split(run)
    assert made is not None
    return made[0]


def test_the_colours_of_a_split_begin_at_no_samples() -> None:
    heat = split_of([[10, 12], [11, 19]])["data"][0]
    assert (heat["zmin"], heat["zmax"]) == (0, 19)
    nobody = split_of([[0, 0]])["data"][0]
    assert nobody["zmin"] < nobody["zmax"]


def test_few_clients_have_whole_ticks_and_their_names() -> None:
    few = split_of([[1, 2]] * 3)["layout"]
    assert few["yaxis"]["dtick"] == few["xaxis"]["dtick"] == 1 and "ticktext" not in few["yaxis"]
    assert "dtick" not in split_of([[1, 2]] * 50)["layout"]["yaxis"]
    named = split_of([[1, 2]] * 3, {0: "Ward <A>", 2: "Ward C"})["layout"]["yaxis"]
    assert named["tickvals"] == [0, 1, 2] and named["ticktext"] == ["Ward &lt;A>", "1", "Ward C"]
    made = log_plots.matrix({n: torch.rand(4) for n in (1, 2)})
    assert made is not None and made[0]["layout"]["yaxis"]["dtick"] == 1


def spread_out(folder: Path) -> plots.Figure:
    """Two seeds far apart, with one bad client each."""
    for seed, level in enumerate((0.2, 0.9)):
        start = torch.full((6,), level)
        start[0] = 0.01
        add_run(folder / f"fedavg-seed{seed}", start, seed=seed, method={"name": "fedavg"})
    figure = plots.accuracy_over_rounds(run_groups.groups(report.find([folder])), "accuracy")
    assert figure is not None
    return figure


def test_bands_are_not_cut_at_the_edge(tmp_path: Path) -> None:
    figure = spread_out(tmp_path)
    for kind, axis in (
        ("seeds", figure["layout"]["yaxis"]),
        ("p10", figure["axis_with_p10"]),
    ):
        drawn = [v for trace in figure["data"] if trace.get("band") == kind for v in trace["y"]]
        low, high = axis["range"]
        assert drawn and low <= max(min(drawn), 0) and high >= min(max(drawn), 100)
        assert low > -2 and high <= 101  # no accuracy is outside 0 to 100


def test_small_gains_are_written_out(tmp_path: Path) -> None:
    for name, lift in (("local", 0.0), ("fedavg", 0.01)):
        add_run(tmp_path / name, torch.linspace(0.1, 0.2, 6) + lift, method={"name": name})
    found = report.find([tmp_path])
    figure = plots.gain_curves(run_groups.groups(found), found)
    assert figure is not None
    assert figure["layout"]["yaxis"]["exponentformat"] == "none"  # 0.0006, not 600µ
