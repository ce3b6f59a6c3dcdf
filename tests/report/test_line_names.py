"""The names at the ends of the lines, in a real browser: what differs stays."""

from pathlib import Path
from typing import Any

import pytest
import torch

from idiolect import report
from tests.report.test_story import add_run
from tests.ui.conftest import chromium, tab  # noqa: F401

pytest.importorskip("plotly", reason="the page needs plotly")

ANNOTATIONS = "() => document.querySelector('.plot')._fullLayout.annotations.map((one) => one.text)"


def test_names_at_lines_keep_what_differs(tab: Any, tmp_path: Path) -> None:  # noqa: F811
    for n, (batch, decay) in enumerate(((16, 0.0), (16, 0.5), (32, 0.0), (32, 0.5))):
        options = {"name": "fedavg", "batch_size": batch, "momentum": decay, "clip": batch + 0.0625}
        add_run(tmp_path / f"{n}", torch.linspace(0.1, 0.2, 6) + 0.1 * n, method=options)
    file = tmp_path / "report.html"
    report.write(report.find([tmp_path]), file, "html")
    tab.set_viewport_size({"width": 1280, "height": 800})
    tab.goto(file.as_uri())
    tab.wait_for_selector(".plot .main-svg")
    tab.wait_for_function(f"() => ({ANNOTATIONS})().length === 4")
    names = [text.split("</span> ")[1] for text in tab.evaluate(ANNOTATIONS)]
    assert len(set(names)) == 4 and all(len(name) <= 26 for name in names)
    apart = "names => distinct(names)"
    long = [f"fedprox batch_size=16 epochs=2 mu={mu} order=shuffled" for mu in (0.1, 0.01)]
    assert tab.evaluate(apart, long) == ["fedprox … mu=0.1", "fedprox … mu=0.01"]
    middle = ["a" * 30 + x + "b" * 30 for x in "xyz"]
    numbered = tab.evaluate(apart, middle)
    assert len(set(numbered)) == 3 and all(len(name) <= 26 for name in numbered)
    assert tab.evaluate(apart, ["short", "short"]) == ["short", "short"]
