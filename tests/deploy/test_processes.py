"""Flower's programs run with safe settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from idiolect.deploy import processes


def test_flower_is_started_without_phoning_home(tmp_path: Path) -> None:
    env = processes.environment(tmp_path / "home")
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert env["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert env["FLWR_HOME"] == str(tmp_path / "home")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only, as is the server")
@pytest.mark.parametrize("when", ["before", "later"])
def test_a_process_ends_with_another(when: str) -> None:
    """Also one that waits for something else, as Flower's do for a server that was killed."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if when == "before":
        other.kill()
        other.wait()
    code = (
        "import sys, threading; from idiolect.deploy import processes\n"
        "print('here', flush=True); processes.end_with(int(sys.argv[1])); threading.Event().wait()"
    )
    command = [sys.executable, "-c", code, str(other.pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"here\n"
        if when == "later":
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            other.kill()
            other.wait()
        assert process.wait(60) == 1
