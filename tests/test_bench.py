"""The benchmarks run, and their rows hold what they name."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from idiolect import bench
from idiolect.cli import app
from idiolect.errors import UserError


@pytest.mark.parametrize("name", ["scale", "server", "sweep"])
def test_quick(name: str) -> None:
    result = bench.run(name, "cpu", quick=True)
    assert result["machine"]["packages"]["torch"]
    for row in result["rows"]:
        assert all(v is None or isinstance(v, str) or v >= 0 for v in row.values())


def test_unknown_name() -> None:
    with pytest.raises(UserError, match="did you mean 'scale'"):
        bench.run("scales")


def test_command() -> None:
    done = CliRunner().invoke(app, ["bench", "server", "--quick", "--device", "cpu", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["name"] == "server"
    assert "pfllib-round" in CliRunner().invoke(app, ["bench", "--list"]).stdout
