"""Figures for a paper."""

from pathlib import Path

import pytest
import torch

from idiolect import report
from idiolect.errors import UserError
from idiolect.report import run_groups
from tests.report.test_story import add_run, method

pytest.importorskip("matplotlib")

from idiolect.report.paper_plot import write_figure


def test_every_format_is_written_and_the_same_each_time(tmp_path: Path) -> None:
    method(tmp_path, "local", 0.0)
    method(tmp_path, "fedper", 0.1)
    found = report.find([tmp_path])
    for ending, start in ((".pdf", b"%PDF"), (".svg", b"<?xml"), (".png", b"\x89PNG")):
        first, second = tmp_path / f"a{ending}", tmp_path / f"b{ending}"
        write_figure(found, first)
        write_figure(found, second)
        assert first.read_bytes().startswith(start)
        assert first.read_bytes() == second.read_bytes()
    write_figure(found, tmp_path / "serif.svg", serif=True)
    drawn = (tmp_path / "a.svg").read_text()
    assert "fedper" in drawn and drawn != (tmp_path / "serif.svg").read_text()


def test_names_are_no_formulas_and_are_not_left_out(tmp_path: Path) -> None:
    import yaml

    add_run(tmp_path / "run", torch.linspace(0.1, 0.5, 6))
    config = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    config["method"]["name"] = r"_a $\frac{$ <b>"
    (tmp_path / "run/config.yaml").write_text(yaml.safe_dump(config))
    write_figure([report.load(tmp_path / "run")], tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert "<b>" not in drawn and "&lt;b&gt;" in drawn and "_a" in drawn


def test_other_endings_are_refused(tmp_path: Path) -> None:
    add_run(tmp_path / "run", torch.linspace(0.1, 0.5, 6))
    with pytest.raises(UserError, match=r"must end in \.pdf, \.svg, \.png"):
        write_figure([report.load(tmp_path / "run")], tmp_path / "a.gif")


@pytest.mark.parametrize(
    "label", ["short", "epochs=10 mu=.1", "participation.rate=0.25 local_epochs=12 " * 2]
)
def test_the_legend_is_outside_the_plot_and_inside_the_figure(
    label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from matplotlib.figure import Figure

    from idiolect.report import paper_plot

    for name in ("local", "fedavg", "fedper"):
        method(tmp_path, name, 0.1 * len(name), seeds=(0,))
    sets = [
        replace(one, label=f"{one.label} {label}")
        for one in run_groups.groups(report.find([tmp_path]))
    ]
    monkeypatch.setattr(paper_plot, "groups", lambda found: sets)
    drawn: list[Figure] = []
    kept = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: (drawn.append(self), kept(self, *a, **k))[1]
    )
    write_figure([], tmp_path / "a.png")
    [canvas] = drawn
    legends = [one.get_legend() for one in canvas.axes if one.get_legend()] + canvas.legends
    [legend] = legends
    box, plot, whole = legend.get_window_extent(), canvas.axes[0].get_window_extent(), canvas.bbox
    assert not box.overlaps(plot)
    assert box.x0 >= whole.x0 and box.x1 <= whole.x1 and box.y1 <= whole.y1
    assert plot.height > 0.5 * 2.3 * canvas.dpi
