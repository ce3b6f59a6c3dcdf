"""Reports from run directories alone: tables, page, unfinished runs, missing plotly."""

import base64
import builtins
import csv
import gzip
import hashlib
import io
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from rich.console import Console
from safetensors.torch import save_file

from idiolect import report
from idiolect.errors import UserError
from idiolect.report import log_plots, run_groups, tables
from idiolect.report import page as page_module
from idiolect.runs import execute as runs
from tests.runs.fake_simulation import FakeSimulation, N, build, resolved


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """local and fedavg with two seeds each, and a fedper that is not finished."""
    out = tmp_path_factory.mktemp("runs")
    for method, lift in (("local", 0.0), ("fedavg", 0.3)):
        for seed in (0, 1):
            start = torch.linspace(0.1, 0.5, N) + lift * torch.linspace(-1, 1, N) + 0.01 * seed

            def lifted(config: Any, start: torch.Tensor = start) -> FakeSimulation:
                return FakeSimulation(config["rounds"], weights=start.clamp(0, 1))

            config = resolved(method={"name": method}, seed=seed)
            runs.execute(config, out / f"{method}-seed{seed}", build=lifted)

    class Stops(FakeSimulation):
        def step(self) -> Any:
            if self.round == 5:
                raise ZeroDivisionError
            return super().step()

    with pytest.raises(ZeroDivisionError):
        config = resolved(method={"name": "fedper"})
        runs.execute(config, out / "fedper-seed0", build=lambda c: Stops(c["rounds"]))
    return out


def test_rows_gather_seeds_and_compare_with_local(folder: Path) -> None:
    rows = {row["method"]: row for row in report.rows(report.find([folder]))}
    assert set(rows) == {"local", "fedavg", "fedper"}
    assert rows["fedavg"]["seeds"] == [0, 1] and rows["fedavg"]["accuracy_std"] > 0
    assert rows["local"]["gain"] is None and rows["fedavg"]["gain"] is not None
    assert 0 < rows["fedavg"]["harmed"] < 1
    assert rows["fedper"]["finished"] is False and rows["fedper"]["rounds"] == 5


def test_when_a_target_was_reached_and_what_it_took(folder: Path) -> None:
    found = report.find([folder])
    fedavg = [run for run in found if run.method == "fedavg"]
    means = [[event["accuracy"]["mean"] for event in run.events] for run in fedavg]
    goal = means[0][7]  # of both seeds; they rise in every round
    first = [next(n for n, mean in enumerate(seed) if mean >= goal) for seed in means]
    row = {row["method"]: row for row in report.rows(found, goal)}["fedavg"]
    assert row["rounds_to"] == np.mean(first) and row["reached"] == 2 and min(first) > 1
    sent = [sum(e["bytes_up"] + e["bytes_down"] for e in r.events[: n + 1]) / 1e6
            for r, n in zip(fedavg, first, strict=True)]  # fmt: skip
    assert row["mb_to"] == pytest.approx(np.mean(sent))
    spent = [sum(event["seconds"] for event in run.events[: n + 1])
             for run, n in zip(fedavg, first, strict=True)]  # fmt: skip
    assert row["seconds_to"] == pytest.approx(np.mean(spent))
    head = report.render(found, "md", target=0.5).splitlines()[0]
    assert "| rounds to 50 % | MB to 50 % | s to 50 % |" in head
    assert " to " not in report.render(found, "md")
    highest = max(max(seed) for seed in means)
    one_seed = report.rows(found, highest)
    row = next(row for row in one_seed if row["method"] == "fedavg")
    assert row["rounds_to"] is None and row["reached"] == 1
    shown = tables.cells(row, tables.columns(one_seed))
    assert "1 of 2 seeds" in shown


def test_less_of_an_error_reaches_its_target_too(tmp_path: Path) -> None:
    from tests.ui.pages import Errors

    runs.execute(resolved(rounds=6), tmp_path / "run", build=lambda c: Errors(c["rounds"]))
    found = report.find([tmp_path / "run"])
    means = [event["accuracy"]["mean"] for event in found[0].events]
    goal = sorted(means)[2]
    [row] = report.rows(found, goal)
    assert row["rounds_to"] == next(n for n, mean in enumerate(means) if mean <= goal)
    assert "at most" in "".join(tables.meanings([row]))


def test_what_is_won_over_a_fine_tuned_global_model(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "more")
    assert "gain over fedavg_ft" not in report.render(report.find([tmp_path / "more"]), "md")
    config = resolved(method={"name": "fedavg_ft"}, seed=0)
    start = torch.linspace(0.2, 0.2, N)
    runs.execute(
        config,
        tmp_path / "more/fedavg_ft-seed0",
        build=lambda c: FakeSimulation(c["rounds"], weights=start.clone()),
    )
    found = report.find([tmp_path / "more"])
    rows = {row["method"]: row for row in report.rows(found)}
    last = {run.path.name: run.summary["accuracy"]["last"]["mean"] for run in found}
    gain = last["fedavg-seed0"] - last["fedavg_ft-seed0"]
    assert rows["fedavg"]["gain_ft"] == pytest.approx(gain) and rows["fedavg_ft"]["gain_ft"] is None
    assert "gain over fedavg_ft" in report.render(found, "md")


def test_text_formats(folder: Path) -> None:
    found = report.find([folder])
    lines = report.render(found, "md").splitlines()
    assert len(lines) == 2 + 3 and len({line.count("|") for line in lines}) == 1
    assert "fedper (unfinished, round 5)" in lines[-1] or "unfinished" in "".join(lines)
    parsed = list(csv.DictReader(io.StringIO(report.render(found, "csv"))))
    assert {row["method"] for row in parsed} == {"local", "fedavg", "fedper"}
    assert 0 < float(parsed[0]["accuracy"]) <= 1
    latex = report.render(found, "latex")
    assert latex.count(r"\\") == 4 and r"\%" in latex


def test_page_is_whole_escaped_and_needs_no_network(folder: Path) -> None:
    pytest.importorskip("plotly")
    page = report.html(report.find([folder]), title="<b>mine & yours</b>")
    assert "<title>&lt;b&gt;mine &amp; yours&lt;/b&gt;</title>" in page
    assert "Not finished yet: fedper-seed0 (round 5 of 12)" in page
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", page)
    figures = json.loads(page.split('id="figures">')[1].split("</script>")[0])
    assert len(figures) >= 5 and all(figure["data"] for figure in figures)
    for heading in (
        "Summary",
        "Accuracy over rounds",
        "Who gains",
        "traffic",
        "logged",
        "Settings",
    ):
        assert heading in page
    assert page.count("Plotly.react") >= 1
    assert len(page) < 2.3e6, "the plotting library lies in the page compressed"


def test_one_run_without_local(folder: Path) -> None:
    pytest.importorskip("plotly")
    page = report.html([report.load(folder / "fedavg-seed0")])
    assert "No <code>local</code> run" in page


def test_a_run_killed_before_its_first_checkpoint(tmp_path: Path) -> None:
    class Stops(FakeSimulation):
        def step(self) -> Any:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        runs.execute(resolved(), tmp_path / "run", build=lambda c: Stops(c["rounds"]))
    found = [report.load(tmp_path / "run")]
    assert not found[0].finished and "unfinished" in report.render(found, "md")
    pytest.importorskip("plotly")
    assert "Not finished yet" in report.html(found)


def test_without_plotly_the_fix_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.startswith("plotly"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(UserError, match="pip install"):
        report.html([report.load(folder / "local-seed0")])


def test_same_method_with_two_settings_stays_apart(tmp_path: Path) -> None:
    for name, lr in (("slow", 0.01), ("fast", 0.1)):
        config = resolved(method={"name": "fedavg", "lr": lr}, rounds=3)
        runs.execute(config, tmp_path / name, build=build)
    labels = [group.label for group in run_groups.groups(report.find([tmp_path]))]
    assert labels == ["fedavg lr=0.1", "fedavg lr=0.01"]


def test_a_point_is_compared_with_local_of_the_same_point(tmp_path: Path) -> None:
    for name in ("local", "fedavg"):
        for lr in (0.01, 0.1):
            config = resolved(method={"name": name, "lr": lr}, rounds=3)
            runs.execute(config, tmp_path / f"{name}-lr{lr}", build=build)
    found = report.find([tmp_path])
    for run in found:
        local = run_groups.reference(run, found)
        if run.method == "fedavg":
            assert local is not None and local.config["method"]["lr"] == run.config["method"]["lr"]
        else:
            assert local is None


def test_settings_that_differ_in_much_are_called_by_their_folder(tmp_path: Path) -> None:
    more = {"lr": 0.2, "epochs": 2, "batch_size": 4, "momentum": 0.5}
    for name, changes in (("usual", {}), ("other", more)):
        config = resolved(method={"name": "fedavg", **changes}, rounds=3)
        runs.execute(config, tmp_path / name, build=build)
    labels = [group.label for group in run_groups.groups(report.find([tmp_path]))]
    assert labels == ["fedavg (other)", "fedavg (usual)"]


def test_folders_without_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        report.find([tmp_path])
    with pytest.raises(UserError, match="does not exist"):
        report.find([tmp_path / "none"])


def test_matrices_of_every_shape() -> None:
    square = log_plots.matrix({3: torch.rand(300, 300)})
    assert square is not None and len(square[0]["data"][0]["z"]) == log_plots.LARGEST_MATRIX
    vector = log_plots.matrix({1: torch.rand(6), 2: torch.rand(6)})
    assert vector is not None and len(vector[0]["data"][0]["z"]) == 6
    scalar = log_plots.matrix({1: torch.tensor(0.5), 2: torch.tensor(float("nan"))})
    assert scalar is not None
    assert log_plots.matrix({1: torch.rand(2, 3, 4)}) is None


SCRIPT = '<script>alert("x")</script>'


def hostile(folder: Path, out: Path, finished: bool = True, **changes: Any) -> Path:
    """A copy of a run whose config somebody changed."""
    shutil.copytree(folder / "fedavg-seed0", out)
    config = yaml.safe_load((out / "config.yaml").read_text())
    for key, value in changes.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    (out / "config.yaml").write_text(yaml.safe_dump(config))
    if not finished:
        (out / "summary.json").unlink()
    return out


def test_nothing_from_a_run_becomes_part_of_the_page(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config.yaml is damaged: rounds must be a whole number"):
        report.load(hostile(folder, tmp_path / "rounds", finished=False, rounds=SCRIPT))
    name = f"<!--{SCRIPT}\u2028$scale"
    runs_found = [
        report.load(hostile(folder, tmp_path / "a<i>&", finished=False, method={"name": name})),
        report.load(hostile(folder, tmp_path / "other", data={"name": name}, split={"k": SCRIPT})),
    ]
    page = report.html(runs_found)
    own = page.replace(page_module.plotly_script(), "")
    assert SCRIPT not in own and "<!--" not in own and "<i>&" not in own
    figures = page.split('id="figures">')[1].split("</script>")[0]
    assert "<" not in figures and any(
        trace["name"].startswith("&lt;!--") for f in json.loads(figures) for trace in f["data"][:1]
    )


def test_the_page_allows_its_own_scripts_and_nothing_else(folder: Path) -> None:
    page = report.html([report.load(folder / "fedavg-seed0")])
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)">', page)
    assert policy is not None
    parts = dict(part.strip().split(" ", 1) for part in policy[1].split(";"))
    assert parts["default-src"] == "'none'" and "unsafe" not in parts["script-src"]

    packed = page.split('id="plotly">')[1].split("</script>")[0]
    plotly = gzip.decompress(base64.b64decode(packed)).decode()

    def hashes(tag: str) -> list[str]:
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        inside = [plotly, *inside] if tag == "script" else inside
        digests = [hashlib.sha256(text.encode()).digest() for text in inside]
        return [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]

    assert len(hashes("script")) == 2 and parts["script-src"].split() == hashes("script")
    assert set(hashes("style")) <= set(parts["style-src-elem"].split())
    assert "\r" not in page and page.count("<script") == 3 + page_module.plotly_script().count(
        "<script"
    )


def test_foreign_names_do_nothing_in_any_output(folder: Path, tmp_path: Path) -> None:
    bad = r"=cmd|' /C calc'!A0\input{/etc/passwd}$x^2$~#{}[a](http://b)`c`<b>"
    found = [
        report.load(hostile(folder, tmp_path / "a", method={"name": f"{bad}\x1b[31m\r\nnext"})),
        report.load(hostile(folder, tmp_path / "b", method={"name": "@SUM(A1)"})),
        report.load(hostile(folder, tmp_path / "c", method={"name": "-1+2"})),
    ]
    for form in ("md", "csv", "latex", "html"):
        text = report.render(found, form)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", text) or form == "html"
        assert "\x1b" not in text
    names = [row["method"] for row in csv.DictReader(io.StringIO(report.render(found, "csv")))]
    assert sorted(name[:2] for name in names) == ["'-", "'=", "'@"]
    latex = report.render(found, "latex")
    assert r"\input" not in latex and r"\textbackslash{}input\{" in latex and "$x" not in latex
    markdown = report.render(found, "md")
    assert "<b>" not in markdown and r"\[a\]" in markdown and r"\`c\`" in markdown
    assert all(
        line.count("|") - line.count(r"\|") == len(tables.COLUMNS) - len(tables.IF_ANY) + 1
        for line in markdown.splitlines()
    )
    screen = io.StringIO()
    Console(file=screen, width=300).print(report.terminal(report.rows(found)))
    assert "\x1b" not in screen.getvalue() and r"\x1b[31m" in screen.getvalue()


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("config.yaml", b"method: 3", "config.yaml is damaged: method must be a section"),
        ("config.yaml", b"\xff\xfe", "config.yaml"),
        ("summary.json", b"{", "summary.json is damaged"),
        ("summary.json", b"[1]", "summary.json is damaged"),
        ("summary.json", b'{"rounds": NaN}', "summary.json is damaged"),
        ("summary.json", b'{"rounds": "many"}', "rounds must be a whole number"),
        ("summary.json", b'{"rounds": 3}', "accuracy is missing"),
        ("summary.json", b"[" * 100_000, "summary.json is damaged"),
        ("summary.json", b"9" * 5000, "summary.json is damaged"),
        ("summary.json", b"\xff", "summary.json is damaged"),
        ("env.json", b"3", "env.json is damaged"),
        ("events.jsonl", b'{"round": 0}\n', "events.jsonl, line 1, is damaged: accuracy is"),
        ("events.jsonl", b"\xff\n", "damaged"),
        ("events.jsonl", b"", "one of them is damaged"),
        ("clients.parquet", b"PAR1 nothing", "clients.parquet"),
        ("clients.parquet", b"", "clients.parquet"),
        ("matrices.safetensors", b"\xff" * 100, "matrices.safetensors"),
    ],
)
def test_damaged_files_are_named(
    file: str, content: bytes, words: str, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "fedavg-seed0", tmp_path / "run")
    (tmp_path / "run" / file).write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        report.html([report.load(tmp_path / "run")])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.drop_columns(["accuracy_before"]),
        lambda table: table.drop_columns(["client"]),
        lambda table: table.rename_columns(["x", *table.column_names[1:]]),
        lambda table: table.set_column(0, "round", pa.array(["a"] * len(table))),
        lambda table: table.set_column(1, "client", pa.array([0] * len(table))),
        lambda table: table.take(list(range(len(table)))[::-1]),
        lambda table: table.slice(0, 3),
        lambda table: table.set_column(
            table.column_names.index("accuracy_before"),
            "accuracy_before",
            pa.array([7.0] * len(table)),
        ),
    ],
)
def test_tables_of_another_form_are_named(change: Any, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "fedavg-seed0", tmp_path / "run")
    file = tmp_path / "run/clients.parquet"
    pq.write_table(change(pq.read_table(file)), file)
    with pytest.raises(UserError, match=r"clients\.parquet") as caught:
        report.load(tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_a_table_that_claims_too_much_is_not_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "fedavg-seed0", tmp_path / "run")
    table = pa.table({"round": pa.array(np.zeros(60_000_000, np.int8))})
    pq.write_table(table, tmp_path / "run/clients.parquet", compression="zstd")
    monkeypatch.setattr(pq, "read_table", lambda *_: pytest.fail("it was read"))
    with pytest.raises(UserError, match="60000000 rows; the most is"):
        report.load(tmp_path / "run")


def test_logged_values_that_are_no_numbers_still_make_a_page(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "fedavg-seed0", tmp_path / "run")
    odd = {"scale/round_0001": torch.tensor(float("nan")), "none/round_0001": torch.zeros(0)}
    save_file(odd, tmp_path / "run/matrices.safetensors")
    assert "scale" in report.html([report.load(tmp_path / "run")])
    save_file({"scale": torch.tensor(1.0)}, tmp_path / "run/matrices.safetensors")
    with pytest.raises(UserError, match=r"matrices\.safetensors"):
        report.html([report.load(tmp_path / "run")])


@pytest.mark.parametrize(
    "name", ["summary.json", "events.jsonl", "seal.json", "checkpoint/round_000012.json"]
)
def test_pipes_and_devices_in_a_run_are_not_read(name: str, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "fedavg-seed0", tmp_path / "run")
    (tmp_path / "run" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "run" / name)
    with pytest.raises(UserError, match=f"{name} is neither a file"):
        report.load(tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / name).symlink_to("/dev/zero")
    with pytest.raises(UserError, match=f"{name} is neither a file"):
        report.load(tmp_path / "run")
