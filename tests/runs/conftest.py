from pathlib import Path

import pytest

from idiolect.runs import execute as runs
from tests.runs.fake_simulation import build, resolved


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of 12 rounds."""
    out = tmp_path_factory.mktemp("whole") / "run"
    runs.execute(resolved(), out, build=build)
    return out
