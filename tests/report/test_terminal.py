"""The table of a terminal: it fits, and no two rows look alike."""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from idiolect import report
from idiolect.report import terminal_table
from tests.report.test_story import method
from tests.ui.pages import environment


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_rows_fit_and_stay_apart(width: int, tmp_path: Path) -> None:
    method(tmp_path, "local", 0.0)
    method(tmp_path, "fedper", 0.1)
    table = report.rows(report.find([tmp_path]))
    long = "fedprox batch_size=16 epochs=2 "
    table += [{**table[0], "method": f"{long}mu={mu} order=shuffled"} for mu in (0.1, 0.01, 0.001)]
    screen = io.StringIO()
    Console(file=screen, width=width).print(report.terminal(table, width))
    lines = screen.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    names = [line[: line.index("  ", 8)] for line in lines if "fedprox" in line]
    assert len(names) == len(set(names)) == 3
    shown = screen.getvalue()
    assert ("not shown in this width" in shown) == (width < 170)


def test_names_are_cut_in_the_middle_or_numbered() -> None:
    names = ["fedprox lr=0.1 mu=0.1", "fedprox lr=0.1 mu=0.2", "local"]
    cut = terminal_table.distinct(names, 16)
    assert cut[0].endswith("mu=0.1") and cut[0].startswith("f") and cut[2] == "local"
    assert all(len(name) <= 16 for name in cut) and len(set(cut)) == 3
    middle = ["a" * 20 + x + "b" * 20 for x in "xyz"]
    numbered = terminal_table.distinct(middle, 10)
    assert len(set(numbered)) == 3 and all(len(name) <= 10 for name in numbered)
    assert terminal_table.distinct(["short", "short"], 9) == ["short", "short"]


def asked(*words: str, **more: str) -> str:
    program = [sys.executable, "-m", "idiolect", *words]
    given = {k: v for k, v in environment(**more).items() if k != "COLUMNS" or "COLUMNS" in more}
    done = subprocess.run(program, env=given, capture_output=True, text=True, check=True)
    return done.stdout


def test_pipes_and_columns_are_respected(tmp_path: Path) -> None:
    method(tmp_path, "local", 0.0, seeds=(0,))
    wide = asked("report", str(tmp_path))
    assert "\x1b" not in wide and "s/round" in wide
    narrow = asked("report", str(tmp_path), COLUMNS="60")
    assert all(len(line) <= 60 for line in narrow.splitlines()) and "\x1b" not in narrow
    assert asked("--version").startswith("idiolect ")


def test_a_terminal_of_80_columns_holds_the_list_of_methods() -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "idiolect", "list", "methods"]
    plain = environment(COLUMNS="80", NO_COLOR="1", TERM="xterm")
    going = subprocess.Popen(words, env=plain, stdout=theirs, stdin=subprocess.DEVNULL)
    os.close(theirs)
    text = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not part:
            break
        text += part
    os.close(ours)
    assert going.wait(60) == 0
    lines = text.decode().replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    assert all(len(line) <= 80 for line in lines) and "\x1b[3" not in "".join(lines)
    assert any("fedas" in line for line in lines) and "--json" in lines[-1]
