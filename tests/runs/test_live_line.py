"""How runs of a stack go is told of all of them, not of the first alone."""

import io
from typing import Any

import pytest
from rich.console import Console

from idiolect.runs.live_line import LiveLine


def event(number: int, mean: float, **more: Any) -> dict[str, Any]:
    stats = {"mean": mean, "p10": mean / 2, "worst": mean / 4}
    return {"round": number, "accuracy": stats, "bytes_up": 500_000, "bytes_down": 0, **more}


def on_terminal(height: int = 20) -> tuple[LiveLine, io.StringIO]:
    line, screen = LiveLine(), io.StringIO()
    line.console = Console(file=screen, force_terminal=True, width=80, height=height, no_color=True)
    return line, screen


def drawn(line: LiveLine, number: int) -> str:
    shown = io.StringIO()
    Console(file=shown, width=80, height=40).print(line._view(number))
    return shown.getvalue()


def test_every_run_of_a_stack_has_its_row() -> None:
    line, _ = on_terminal()
    line.start("fedas seed 0,1,2", 0, 4, members=[f"fedas seed {n}" for n in range(3)])
    for member, mean in enumerate((0.5, 0.6, 0.7)):
        line.update(event(1, mean), member)
    shown = drawn(line, 1)
    line.close()
    rows = {n: next(one for one in shown.splitlines() if f"fedas seed {n} " in one) for n in (1, 2)}
    assert "60.0" in rows[1] and "70.0" in rows[2] and "accuracy %" in shown
    assert next(one for one in shown.splitlines() if one.startswith("all")).split() == [
        "all", "60.0", "30.0", "12.5"
    ]  # fmt: skip
    assert "round 1/4" in shown and "ETA" in shown and "1.5 MB" in shown
    assert all(len(one) <= 80 for one in shown.splitlines())


def test_a_low_window_says_how_many_runs_it_leaves_out() -> None:
    line, _ = on_terminal(height=10)
    line.start("fedprox", 0, 4, members=[f"fedprox mu {n}" for n in range(30)])
    for member in range(30):
        line.update(event(1, 0.5), member)
    shown = drawn(line, 1)
    line.close()
    assert "fedprox mu 4 " in shown and "fedprox mu 5 " not in shown and "and 25 more" in shown


def test_a_log_file_gets_one_line_of_the_whole_stack(capsys: pytest.CaptureFixture[str]) -> None:
    line = LiveLine()
    line.console = Console(file=io.StringIO(), width=80)
    line.start("local seed 0,1", 0, 1, members=["local seed 0", "local seed 1"])
    other = {"metric": {"name": "rmse", "better": "lower"}}
    line.update(event(1, 2.0, **other), 0)
    assert capsys.readouterr().err == ""
    line.update(event(1, 4.0, **other), 1)
    assert "round 1/1  rmse mean 3  p10 1.5  worst 1 " in capsys.readouterr().err
