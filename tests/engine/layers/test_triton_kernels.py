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
    plain = {"_outputs", "_outputs tf32", "_to_weights", "_to_weights tf32"}
    products = plain | {f"{name} pooled" for name in plain}
    steps = {"_step", "_take_away", "_sums"}
    assert set(found) == {*products, *steps, "_loss", "_normalise", "_back", "_pool", "_move"}
    for kernel in products:
        assert found[kernel]["matrix_products"], kernel
        assert not found[kernel]["unguarded"], kernel
        assert found[kernel]["wide_loads"], (kernel, found)
        if kernel.startswith("_outputs"):
            of_bytes = kernel.endswith("pooled")  # eight places of windows at a time
            stores = found[kernel]["stores"] - of_bytes
            assert stores == found[kernel]["wide_stores"] > 0, (kernel, found)
    for kernel in steps:
        assert found[kernel]["wide_loads"] and not found[kernel]["unguarded"], (kernel, found)
        if kernel != "_sums":  # one value for each column
            assert found[kernel]["stores"] == found[kernel]["wide_stores"] > 0, (kernel, found)
