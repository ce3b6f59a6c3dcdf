"""Figures for a paper."""

from pathlib import Path

import pytest
import torch

from idiolect import report
from idiolect.errors import UserError
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
