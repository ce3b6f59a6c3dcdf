"""Figures from recorded series."""

from pathlib import Path
from typing import Any

import pytest

from idiolect.papers.cells import cells
from idiolect.papers.figure_data import Curve, panels
from idiolect.papers.results import Results
from idiolect.runs.execute import execute_together
from tests.papers.tiny import TINY, tiny

ROWS = [{"id": "fedavg", "label": "FedAvg", "method": "fedavg"}, {"id": "local", "method": "local"}]


def made(quick: bool = False, **changes: Any) -> Results:
    settings: dict[str, Any] = {"rows": ROWS, "claims": [], "kind": "figure", "seeds": [0, 1]}
    recipe = tiny(**settings | {"title": "Figure 1: digits"} | changes)
    results = Results(Path("r"), recipe, quick)
    found = cells(recipe, quick=quick)
    outs = [Path(f"runs/{k}") for k in range(len(found))]
    for cell, out in zip(found, outs, strict=True):
        execute_together([cell.config], [out])
    results.add(found, outs)
    return results


def test_curves_over_rounds() -> None:
    figure = {"chart": "lines", "x": "round", "y": ["accuracy", "train_loss"], "panels": "columns"}
    shown = panels(made(figure=figure))
    assert [(p.title, p.y) for p in shown] == [
        (title, y) for y in ("accuracy", "train_loss") for title in ("α=0.5", "even")
    ]
    assert list(shown[0].curves) == ["FedAvg", "local"]
    rounds, mean, spread = shown[0].curves["FedAvg"].summary()
    assert rounds == [0, 1, 2, 3] and len(mean) == 4 and all(s >= 0 for s in spread)
    assert all(len(values) == 2 for values in shown[0].curves["FedAvg"].points.values())


def test_a_curve_ends_where_a_seed_ends() -> None:
    """The mean of the seeds that are left would jump there."""
    curve = Curve("a", {0: [1.0, 9.0], 1: [2.0, 9.5], 2: [2.5]})
    curve.keep_common()
    assert curve.summary()[:2] == ([0, 1], [5.0, 5.75])


def test_points_over_a_setting_with_the_papers_numbers() -> None:
    [panel] = panels(made(figure={"x": "split.alpha", "y": "protocol"}))
    curve = panel.curves["FedAvg"]
    assert curve.summary()[0] == [0.5, 50.0] and curve.paper == {0.5: 80.0, 50.0: 90.0}


def test_bars_of_clients() -> None:
    figure = {"chart": "bars", "x": "client", "y": "clients.accuracy_before", "panels": "columns"}
    results = made(figure=figure)
    shown = panels(results)
    assert [panel.title for panel in shown] == ["α=0.5", "even"]
    x, mean, _ = shown[0].curves["FedAvg"].summary()
    assert x == [1, 2, 3, 4] and all(0 < value <= 100 for value in mean)
    # Client 3 holds other data in every seed, so the bars are those of one.
    assert shown[0].seed == 0
    assert all(len(values) == 1 for values in shown[0].curves["FedAvg"].points.values())
    for file in (results.folder / "series").iterdir():  # as of runs recorded before
        file.unlink()
    assert panels(results) == []


def test_a_curve_looks_alike_where_others_are_missing() -> None:
    pytest.importorskip("matplotlib")
    from idiolect.papers import paper_figure

    results = made(figure={"x": "round", "y": "accuracy", "panels": "columns"})
    shown = panels(results)
    del shown[1].curves["FedAvg"]
    first, second = paper_figure.draw(results, shown).axes
    colours = {line.get_label(): line.get_color() for line in first.lines}
    assert [line.get_color() for line in second.lines] == [colours["local"]]


def test_axes_say_what_was_measured() -> None:
    pytest.importorskip("matplotlib")
    from idiolect.papers import paper_figure

    base = TINY["base"] | {"measure": ["train"]}
    results = made(figure={"x": "round", "y": ["measured.train_loss", "accuracy"]}, base=base)
    axes = paper_figure.draw(results, panels(results)).axes
    labels = [axis.get_ylabel().replace("\n", " ") for axis in axes]
    assert labels == ["training loss", "accuracy, mean of clients (%)"]


def test_a_matrix() -> None:
    rows = [{"id": "dwa", "method": "feddwa"}]
    figure = {"chart": "heatmap", "x": "partner", "y": "aggregation_weight"}
    shown = panels(made(figure=figure, rows=rows, paper_values={}))
    assert len(shown) == 2 and shown[0].matrix is not None and shown[0].matrix.shape == (4, 4)


def test_matrices_lie_in_a_grid_of_rows_and_columns() -> None:
    """Titles and ticks do not run into one another: a method is named beside its row, once."""
    agg = pytest.importorskip("matplotlib.backends.backend_agg")
    from idiolect.papers import paper_figure

    rows = [{"id": "dwa", "label": "FedDWA", "method": "feddwa"}, {"id": "l2c", "method": "l2c"}]
    figure = {"chart": "heatmap", "x": "partner", "y": "aggregation_weight", "ylabel": "client"}
    results = made(figure=figure, rows=rows, paper_values={})
    shown = panels(results)
    assert [(p.row, p.title) for p in shown] == [
        (row, title) for row in ("FedDWA", "l2c") for title in ("α=0.5", "even")
    ]
    del shown[1]  # what has not run leaves its place empty
    drawing = paper_figure.draw(results, shown)
    first, empty, *below = drawing.axes[:4]
    others = [first, *below]
    assert not empty.get_visible() and all(axis.get_visible() for axis in others)
    assert [axis.get_ylabel() for axis in others] == ["FedDWA: client", "l2c: client", ""]
    assert [axis.get_xlabel() for axis in others] == ["", "partner", "partner"]
    assert drawing.get_suptitle().endswith("(seed 0)")
    renderer = agg.FigureCanvasAgg(drawing).get_renderer()
    boxes = [axis.title.get_window_extent(renderer) for axis in others]
    assert not any(a.overlaps(b) for a in boxes for b in boxes if a is not b)


def test_clients_are_those_of_one_seed_and_late_ones_look_different() -> None:
    """A mean over seeds of client 0 would be one over different data."""
    pytest.importorskip("matplotlib")
    from idiolect.papers import paper_figure

    figure = {"y": "clients.accuracy_before", "series": "clients", "panels": "columns", "log": True}
    base = TINY["base"] | {"stragglers": {"periods": [0, 2], "cycle": "paper"}}
    results = made(figure=figure, base=base, rows=ROWS[:1], paper_values={})
    panel, _ = shown = panels(results)
    assert [curve.label for curve in panel.curves.values()] == [
        "always on time", "late", "always on time", "always on time"
    ]  # fmt: skip
    assert all(len(seeds) == 1 for c in panel.curves.values() for seeds in c.points.values())
    drawn = paper_figure.draw(results, shown)
    assert "(seed 0)" in drawn.get_suptitle() and drawn.axes[0].get_yscale() == "log"
    colours = [line.get_color() for line in drawn.axes[0].lines]
    assert colours[0] == colours[2] != colours[1]
    named = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert named == ["always on time", "late"]


def test_points_have_whole_ticks() -> None:
    pytest.importorskip("matplotlib")
    from idiolect.papers import paper_figure

    results = made(figure={"x": "rounds", "y": "protocol"})
    axis = paper_figure.draw(results, panels(results)).axes[0]
    assert [x for x in axis.get_xticks() if not float(x).is_integer()] == []


def test_files_and_the_word_quick() -> None:
    pytest.importorskip("matplotlib")
    from idiolect.papers import paper_figure

    results = made(quick=True, figure={"x": "round", "y": "accuracy", "ylabel": "accuracy (%)"})
    files = paper_figure.write(results)
    assert [file.suffix for file in files] == [".pdf", ".svg", ".png"]
    assert "QUICK" in paper_figure.draw(results, panels(results)).get_suptitle()
    axis = paper_figure.draw(results, panels(results)).axes[0]
    assert axis.get_ylabel() == "accuracy (%)" and axis.get_xlabel() == "round"
    before = [file.read_bytes() for file in files]
    assert [file.read_bytes() for file in paper_figure.write(results)] == before
    (results.folder / "runs.jsonl").write_text("")  # as if of an earlier revision
    later = Results(Path("r"), results.recipe, quick=True)
    assert not paper_figure.write(later) and not any(file.exists() for file in files)
