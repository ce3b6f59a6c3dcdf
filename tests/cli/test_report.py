"""`idiolect report`."""

import json
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


def test_a_target_is_in_percent_where_the_table_is() -> None:
    call("run", "local", *TINY, "--out", "r")
    assert "rounds to 20 %" in call("report", "r", "--target", "20").stdout
    told = json.loads(call("report", "r", "--target", "20", "--json").stdout)
    assert told[0]["target"] == 0.2
    for wrong in ("0.2", "101", "nan"):
        result = call("report", "r", "--target", wrong)
        assert result.exit_code == 2 and "--target is in percent" in result.stderr


def test_a_target_of_another_metric_must_be_a_number() -> None:
    Path("t.csv").write_text(
        "site,kind,x\n" + "".join(f"{k % 2},{k * 0.5},{k}\n" for k in range(40))
    )
    words = ("--data", "t.csv", "--set", "data.client=site", "--set", "data.label=kind")
    made = call("run", "local", *words, "--task", "regression", "--rounds", "1", "--out", "r")
    assert made.exit_code == 0, made.output
    for wrong in ("nan", "inf"):
        result = call("report", "r", "--target", wrong, "--json")
        assert result.exit_code == 2 and "--target must be a number" in result.stderr
    assert call("report", "r", "--target", "0.5", "--json").exit_code == 0


def test_a_report_replaces_no_part_of_a_run_and_has_a_known_ending() -> None:
    call("run", "local", *TINY, "--out", "r")
    before = {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file()}
    for out in ("r/config.yaml", "r/checkpoint/new.md", "r/split.json", "r/exports/README.md"):
        result = call("report", "r", "-o", out, "--format", "md")
        assert result.exit_code == 2 and "part of a run (r)" in result.stderr, result.output
        assert len(result.stderr.strip().splitlines()) == 1
    for out in ("r/config.yaml", "x.docx", "x.json", "x.pdf", "x"):
        result = call("report", "r", "-o", out)
        assert result.exit_code == 2 and ".html, .htm, .md" in result.stderr, result.output
        assert out.startswith("r/") or not Path(out).exists()
    assert {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file()} == before
    assert call("report", "r", "-o", "x.txt", "--format", "md").exit_code == 0
    assert call("report", "r", "-o", "r/report.md").exit_code == 0
    assert call("report", "r", "-o", "r/report.md").exit_code == 0
