"""The example runs as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.federation_processes import ROOT, needs_flower


@needs_flower
@pytest.mark.heavy
def test_three_sites(tmp_path: Path) -> None:
    script = ROOT / "examples" / "three-sites" / "three_sites.py"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "140"}
    done = subprocess.run(
        [sys.executable, str(script), "--rounds", "2", "--folder", str(tmp_path / "here")],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    table = done.stdout.splitlines()
    assert [sum(line.strip().startswith(m) for line in table) for m in ("fedas ", "plga ")] == [
        1,
        1,
    ]
    for method in ("fedas", "plga"):
        assert (tmp_path / "here" / "runs" / method / "summary.json").exists()
    assert "3 of 3 arrived" in done.stderr
