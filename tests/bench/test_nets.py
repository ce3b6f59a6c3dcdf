"""`idiolect bench nets`: every network is stacked, with the loop's numbers; failures are rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from idiolect.bench import net_zoo, nets
from idiolect.cli.app import app


@pytest.mark.parametrize("name", net_zoo.ZOO)
def test_engines_agree_on(name: str) -> None:
    """In wide stacks, as on a GPU (a fixture of all tests)."""
    gap = nets._distance(net_zoo.ZOO[name], "cpu", quick=True)
    assert 0 < gap < 1e-9


def test_rows_name_their_precision_and_slow_ways() -> None:
    rows = list(nets.nets("cpu", quick=True, only="gru, lora"))
    assert [r["net"] for r in rows] == ["gru", "lora"]
    for row in rows:
        assert row["engine"] == "stacked" and row["fallbacks"] == 0
        assert row["dtype"] == "float32" and row["distance"] < 1e-9
        assert row["tax"] == row["stacked_ms"] / row["central_ms"]


def test_a_network_that_fails_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(small: bool) -> Any:
        raise RuntimeError("out\nof order")

    monkeypatch.setitem(net_zoo.ZOO, "mlp", net_zoo.NetEntry(broken))
    out = tmp_path / "nets.json"
    command = ["bench", "nets", "--quick", "--device", "cpu", "--only", "mlp,gru", "--out"]
    done = CliRunner().invoke(app, [*command, str(out)])
    assert done.exit_code == 0
    one, other = json.loads(out.read_text())["rows"]
    assert one["error"] == "RuntimeError: out of order"
    assert "error" not in other and other["tax"] > 0


@pytest.mark.parametrize(
    ("more", "said"),
    [(["nets", "--only", "grus"], "did you mean 'gru'"), (["tax", "--only", "gru"], "no --only")],
)
def test_what_cannot_be_asked(more: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["bench", *more, "--quick", "--device", "cpu"])
    assert done.exit_code == 2 and said in done.stderr


def test_a_column_of_a_table_is_timed_method_by_method(tmp_path: Path) -> None:
    out, kept = tmp_path / "table.json", tmp_path / "kept"
    command = ["bench", "table", "--quick", "--device", "cpu", "--results", str(kept)]
    command += ["--only", "fedper,fedas", "--out", str(out)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.stderr
    *rows, whole = json.loads(out.read_text())["rows"]
    assert [r["method"] for r in rows] == ["fedper", "fedas"]
    assert all(r["seeds"] == 2 and 0 < r["accuracy"] <= 100 for r in rows)
    # By the clock, processes and all: one after the other cannot take less than their sum.
    assert whole["method"] == "all" and whole["seconds"] > sum(r["seconds"] for r in rows)
    assert (kept / "fedas-table3" / "cells.csv").exists()
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 2 and "give --results a new folder" in again.stderr


def test_only_methods_of_the_table_are_timed() -> None:
    command = ["bench", "table", "--quick", "--device", "cpu", "--only", "fedpre"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2 and "did you mean 'fedper'" in done.stderr
