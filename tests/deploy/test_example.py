"""The example runs as it stands."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.federation_processes import ROOT, needs_flower

LONG = 1800.0  # seconds; the machine may be busy


@needs_flower
@pytest.mark.heavy
def test_three_sites(tmp_path: Path) -> None:
    script = ROOT / "examples" / "three-sites" / "three_sites.py"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "140"}
    command = [sys.executable, str(script), "--rounds", "2", "--folder", str(tmp_path / "here")]
    pipe, how = subprocess.PIPE, {"cwd": tmp_path, "env": env, "start_new_session": True}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **how) as process:
        try:
            printed, said = process.communicate(timeout=LONG)
        finally:  # the sites too, which would look for their server for ever
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
    assert process.returncode == 0, printed[-2000:] + said[-2000:]
    assert re.findall(r"^ *(fedas|plga) +[\d.]+ ", printed, re.M) == ["fedas", "plga"]  # its rows
    for method in ("fedas", "plga"):
        assert (tmp_path / "here" / "runs" / method / "summary.json").exists()
    assert "3 of 3 arrived" in said
