"""A path is a path, whatever it looks like; `~` is the home folder; nothing is no path."""

import json
from pathlib import Path

import pytest

from idiolect.data import places
from tests.cli.calls import TINY, call


@pytest.mark.parametrize("out", ["run:1", "s3:x", "file:", "a%20b", "x?y#z", "-o-", "a b", "é"])
def test_a_run_may_have_any_name(out: str) -> None:
    assert call("run", "fedavg", *TINY, f"--out={out}").exit_code == 0
    assert (Path(out) / "clients.parquet").is_file()
    assert call("report", "--json", "--", out).exit_code == 0
    Path(out, "summary.json").unlink()
    assert call("resume", "--", out).exit_code == 0
    assert call("compare", "local", *TINY, f"--out={out}c").exit_code == 0
    assert (
        call("report", f"{out}c" if out[0] != "-" else f"./{out}c", "-o", "r:1.html").exit_code == 0
    )
    assert Path("r:1.html").is_file()


def test_home_is_expanded_everywhere(someone: Path) -> None:
    (someone / "c.yaml").write_text("rounds: 2\nsplit: {clients: 4}\nmodel: linear\n")
    words = ["run", "fedavg", "--config=~/c.yaml", "--out=~/runs/a", "--save-models", "last"]
    assert call(*words).exit_code == 0
    assert (someone / "runs/a/summary.json").is_file() and not Path("~").exists()
    (someone / "who.json").write_text("[[0, 1], [2, 3]]")
    words = ["run", "fedavg", "--config=~/c.yaml", "--schedule=~/who.json", "--out=~/runs/b"]
    assert call(*words, "--set", "init=~/runs/a/models/last").exit_code == 0
    assert call("report", "~/runs", "-o", "~/r.html").exit_code == 0
    assert (someone / "r.html").is_file() and not Path("~").exists()
    (someone / "runs/b/summary.json").unlink()
    assert call("resume", "~/runs/b").exit_code == 0


@pytest.mark.parametrize(
    "words",
    [
        ["run", "fedavg", "--out", ""],
        ["run", "fedavg", "--out", "  "],
        ["run", "fedavg", "--config", ""],
        ["run", "fedavg", "--init", ""],
        ["run", "fedavg", "--schedule", ""],
        ["run", "fedavg", "--set", "init=''"],
        ["run", "fedavg", "--set", 'schedule="a\\0b"'],
        ["run", "fedavg", "--out", "~no-such-user-here/x"],
        ["compare", "fedavg", "--out", ""],
        ["demo", "--out", ""],
        ["report", ""],
        ["report", ".", "-o", ""],
        ["resume", ""],
        ["bench", "--out", ""],
        ["keys", ""],
    ],
)
def test_nothing_is_no_path(words: list[str]) -> None:
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert "path" in result.stderr
    assert not list(Path().iterdir())


def test_data_may_lie_in_a_folder_with_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDIOLECT_DATA", "data:1")
    assert places.roots()[0] == Path("data:1").absolute()
    monkeypatch.setenv("IDIOLECT_DATA", "~/data")
    assert places.roots()[0] == Path.home() / "data"


def test_starting_weights_for_nobody_are_refused() -> None:
    assert call("run", "local", *TINY, "--save-models", "last", "--out", "a").exit_code == 0
    folder = Path("a/models/last")
    for file in folder.glob("*.safetensors"):
        if file.stem.startswith("client_"):
            file.rename(file.with_name(f"client_{int(file.stem[-4:]) + 90:04d}.safetensors"))
    (folder / "server.safetensors").unlink(missing_ok=True)
    result = call("run", "local", *TINY, "--init", folder, "--out", "b")
    assert result.exit_code == 2, result.output
    assert "client_0090" in result.stderr and "0 to 3" in result.stderr
    events = Path("b/events.jsonl")
    assert not events.exists() or not json.loads(events.read_text().splitlines()[0])
