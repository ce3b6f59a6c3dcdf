"""The folder a command is called in may come from anyone: what lies there runs nothing."""

import subprocess
from pathlib import Path

import pytest

from idiolect.runs.environment import revision


def git(*words: str) -> None:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", *who, *words], check=True, capture_output=True)


@pytest.fixture
def checkout() -> Path:
    git("init", "-q", ".")
    Path("a.txt").write_text("a")
    git("add", "a.txt")
    git("commit", "-qm", "a")
    return Path()


@pytest.mark.parametrize("how", ["fsmonitor", "filter", "included filter", "hook"])
def test_programs_of_a_checkout_are_not_run(checkout: Path, how: str, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch '{ran}'\ncat\n")
    program.chmod(0o755)
    Path("a.txt").write_text("b")
    if how == "fsmonitor":
        git("config", "core.fsmonitor", str(program))
    elif how == "hook":
        Path(".git/hooks").mkdir(exist_ok=True)
        program.rename(".git/hooks/post-index-change")
    else:
        Path(".gitattributes").write_text("*.txt filter=x\n")
        text = f'[filter "x"]\n\tclean = {program}\n'
        Path("more").write_text(text)
        included = f"[include]\n\tpath = {Path('more').absolute()}\n"
        with Path(".git/config").open("a") as file:
            file.write(included if how == "included filter" else text)
    assert revision(Path())
    assert not ran.exists()


def test_a_plain_checkout_still_says_whether_it_was_changed(checkout: Path) -> None:
    clean = revision(Path())
    assert clean and not clean.endswith("+")
    Path("a.txt").write_text("changed")
    assert revision(Path()) == f"{clean}+"
