"""Whatever goes wrong is one line and an exit code: never a traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from idiolect.core.text import one_line, shortened
from tests.cli.calls import call


def program(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "idiolect", *words]
    options = {"capture_output": True, "text": True, "timeout": 60} | options
    return subprocess.run(command, **options)


def broken(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> Any:
    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr("idiolect.report.find", fails)
    return call("report", "nowhere")


def test_a_fault_is_one_line_with_a_report_that_is_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IDIOLECT_CACHE", str(tmp_path / "cache"))
    for number in (1, 2):
        result = broken(monkeypatch, ZeroDivisionError("by \x1b[31mnothing"))
        assert result.exit_code == 70 and result.stdout == ""
        assert result.stderr.count("\n") == 1 and "\x1b" not in result.stderr
        kept = sorted((tmp_path / "cache/crashes").iterdir())
        assert len(kept) == number and str(kept[-1]) in result.stderr
    assert "ZeroDivisionError" in kept[0].read_text() and "Traceback" in kept[0].read_text()


def test_where_the_cache_cannot_be_written_the_report_is_a_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("IDIOLECT_CACHE", str(tmp_path / "file/cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = broken(monkeypatch, ZeroDivisionError())
    assert result.exit_code == 70
    assert len(list(tmp_path.glob("idiolect-crash-*.txt"))) == 1


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "stopped"),
        (MemoryError(), 1, "memory is full"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 1, "memory is full"),
        (PermissionError(13, "Permission denied", "x.yaml"), 2, "x.yaml: Permission denied"),
        (OSError(28, "No space left on device", "x"), 1, "x: No space left"),
        (BrokenPipeError(32, "Broken pipe"), 1, "output was closed"),
    ],
)
def test_expected_failures_are_lines(
    error: BaseException, code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = broken(monkeypatch, error)
    assert result.exit_code == code and words in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [["run"], ["run", "fedavg", "--nothing"], ["run", "fedavg", "--rounds", "x"], ["nothing"]],
)
def test_an_unreadable_command_line_is_one_line(words: list[str]) -> None:
    result = call(*words)
    assert result.exit_code == 2 and result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1 and "--help`" in result.stderr


def test_closed_and_full_outputs() -> None:
    read, write = os.pipe()
    os.close(read)
    closed = program("list", "methods", stdout=write, stderr=subprocess.PIPE, capture_output=False)
    os.close(write)
    assert closed.returncode == 1 and closed.stderr.count("\n") == 1
    with open("/dev/full", "w") as full:
        done = program("list", "methods", stdout=full, stderr=subprocess.PIPE, capture_output=False)
    assert done.returncode == 1 and "No space left" in done.stderr and done.stderr.count("\n") == 1


def test_no_output_at_all_and_a_terminal_that_knows_ascii_only() -> None:
    silent = program("list", "methods", preexec_fn=lambda: os.close(1), capture_output=False)
    assert silent.returncode == 0
    plain = program("list", "datasets", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert plain.returncode == 0 and plain.stderr == ""


@pytest.mark.parametrize("module", ["typer", "torch"])
def test_ctrl_c_during_imports_is_one_line(module: str, tmp_path: Path) -> None:
    """Also where the library that is imported drops the interruption."""
    (tmp_path / f"{module}.py").write_text(
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    import time; time.sleep(5)\n"
        "except BaseException:\n    pass\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = program("list", "methods", env={**os.environ, "PYTHONPATH": path})
    assert (done.returncode, done.stderr, done.stdout) == (130, "stopped\n", "")


def test_an_interruption_that_became_another_error_is_still_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise SystemError("a library's own") from None

    monkeypatch.setattr("idiolect.report.find", fails)
    result = call("report", "nowhere")
    assert (result.exit_code, result.stderr) == (130, "stopped\n")


def test_foreign_text_is_one_harmless_line() -> None:
    assert one_line("a\x1b[31m\r\nb\u202e\ud800é") == r"a\x1b[31m\r\nb\u202e\ud800é"
    assert len(shortened("\n" * 1000)) <= 121 and shortened("short") == "short"


def test_faults_beside_own_code_are_its_author_s_to_look_at(tmp_path: Path) -> None:
    """What own code returned may break ours; what ends the program there is told, too."""
    own = tmp_path / "own.py"
    for number, (body, said) in enumerate(
        (("raise SystemExit(3)", "SystemExit: 3"), ("return None", "idiolect check"))
    ):
        own.write_text(
            "from dataclasses import dataclass\nfrom idiolect.methods.fedavg import FedAvg\n"
            "@dataclass(frozen=True)\nclass Own(FedAvg):\n    name = 'own'\n"
            f"    def personal(self, down, mine):\n        {body}\n"
        )
        words = ("run", f"{own}:Own", "--clients", "3", "--rounds", "1", "--model", "linear")
        done = program(*words, "--out", str(tmp_path / f"run{number}"), cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert done.stderr.count("error: ") == 1 and said in done.stderr, done.stderr


def test_a_folder_that_holds_everything_is_no_data(tmp_path: Path) -> None:
    for place in ("/", "~"):
        home = {**os.environ, "HOME": str(tmp_path), "IDIOLECT_CACHE": str(tmp_path / "cache")}
        done = program("data", "inspect", place, cwd=tmp_path, env=home)
        assert done.returncode == 2 and "name the folder" in done.stderr, done.stderr
