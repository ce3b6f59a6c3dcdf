import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.commands import HERE, ForkServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not Path("/proc/self/fd").exists():
        pytest.skip("needs a C compiler and Linux")
    place = tmp_path_factory.mktemp("faults")
    library = place / "file_faults.so"
    source = str(HERE / "file_faults.c")
    build = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), source]
    subprocess.run([*build, "-ldl"], check=True)
    made = ForkServer(library, place / "said")
    yield made
    made.close()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was tried, in numbers."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, text in getattr(report, "user_properties", ()):
            if name == "faults":
                terminalreporter.write_line(text)
