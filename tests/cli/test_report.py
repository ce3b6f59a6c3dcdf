"""`idiolect report`."""

from pathlib import Path

from tests.cli.calls import TINY, call


def test_report_formats(tmp_path: Path) -> None:
    call("run", "local", *TINY, "--out", "r")
    assert "accuracy" in call("report", "r").stdout
    assert call("report", "r", "--format", "md").stdout.startswith("| method")
    assert call("report", "r", "--format", "csv").stdout.startswith("method,")
    assert call("report", "r", "-o", "page.html").exit_code == 0
    assert Path("page.html").stat().st_size > 1_000_000
    assert call("report", "r", "-o", "table.md").exit_code == 0
    assert Path("table.md").read_text().startswith("| method")
    assert call("report", "r", "-o", "none/table.md").exit_code == 2
