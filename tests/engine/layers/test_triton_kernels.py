"""Our kernels as a GPU would run them: compiled here, without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_compile_and_move_four_values_at_a_time(tmp_path: Path) -> None:
    """Triton moves single values where it is not told that the number of places divides by 16."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.layers.compiled"],
        cwd=ROOT,
        env=env | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    names = ("_outputs", "_to_weights", "_step")
    products = {*names, *(f"{name} tf32" for name in names)}
    assert set(found) == {*products, "_pool", "_move"}
    for kernel in products:
        assert found[kernel]["matrix_products"], kernel
        assert not found[kernel]["unguarded"], kernel
        assert found[kernel]["wide_loads"], (kernel, found)
        if not kernel.startswith("_to_weights"):
            assert found[kernel]["stores"] == found[kernel]["wide_stores"] > 0, (kernel, found)
