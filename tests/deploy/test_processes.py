"""Flower's programs run with safe settings."""

from __future__ import annotations

from pathlib import Path

from idiolect.deploy import processes


def test_flower_is_started_without_phoning_home(tmp_path: Path) -> None:
    env = processes.environment(tmp_path / "home")
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert env["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert env["FLWR_HOME"] == str(tmp_path / "home")
