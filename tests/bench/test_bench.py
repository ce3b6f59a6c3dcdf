"""The benchmarks run, and their rows hold what they name."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from idiolect import bench
from idiolect.bench import headline, start
from idiolect.bench.job import Job, measure, pooled, random_federation, random_pool
from idiolect.bench.round_time import cpu_jobs, uneven
from idiolect.cli.app import app
from idiolect.errors import UserError
from idiolect.runs import environment

LONG = {"nets", "seeds"}  # even in their quick form


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.heavy] if name in LONG else [])
        for name in bench.BENCHMARKS
    ],
)
def test_quick(name: str) -> None:
    result = bench.run(name, "cpu", quick=True)
    assert result["machine"]["packages"]["torch"]
    assert result["rows"] and "failed" not in result
    for row in result["rows"]:
        assert all(v is None or isinstance(v, (str, list)) or v >= 0 for v in row.values())


def test_a_row_of_the_table_has_the_seconds_of_all_its_seeds(tmp_path: Path) -> None:
    """A recorded run has its part of the stack's seconds."""
    result = bench.run("table", "cpu", quick=True, only="fedavg_ft", results=tmp_path)
    lines = (tmp_path / "fedas-table3" / "runs.jsonl").read_text().splitlines()
    parts = [json.loads(line)["summary"]["seconds"] for line in lines]
    [row, whole] = result["rows"]
    assert len(parts) == 2 and row["seconds"] == pytest.approx(sum(parts))
    assert row["seconds"] < whole["seconds"]


def test_unknown_name() -> None:
    with pytest.raises(UserError, match="did you mean 'scale'"):
        bench.run("scales")


def test_command() -> None:
    done = CliRunner().invoke(app, ["bench", "server", "--quick", "--device", "cpu", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["name"] == "server"
    assert "pfl-headline" in CliRunner().invoke(app, ["bench", "--list"]).stdout


@pytest.mark.parametrize("out", ["", "nowhere/result.json"])
def test_a_place_for_the_result_is_asked_for_first(out: str, tmp_path: Path) -> None:
    command = ["bench", "server", "--quick", "--device", "cpu", "--out", str(tmp_path / out)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2 and not done.stdout
    assert done.stderr.startswith("error: cannot write") and done.stderr.count("\n") == 1


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("idiolect.core.files.write_json", full)
    command = ["bench", "server", "--quick", "--device", "cpu", "--out", str(tmp_path / "a.json")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2 and "mix_s" in done.stdout  # the table is there all the same
    assert done.stderr.endswith("a.json: No space left on device\n")


def test_headline_needs_cifar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Random data never stands in for CIFAR-10 unless the quick form was asked for."""
    for name in ("IDIOLECT_DATA", "IDIOLECT_CACHE"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("idiolect.data.places.hub_installed", lambda: False)
    done = CliRunner().invoke(app, ["bench", "pfl-headline", "--device", "cpu"])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: dataset 'cifar10' not found")
    assert done.stderr.count("\n") == 1
    assert headline.headline_jobs(quick=True)[0].label["data"] == "random"


def test_headline_settings() -> None:
    """Equal weights, the samples in stored order, a twentieth of the users, dropout on."""
    job = headline.headline_jobs(quick=True)[0]
    sim = job.simulation("cpu", 3)
    assert sim.method.weighting == "uniform" and sim.method.order == "fixed"  # type: ignore[attr-defined]
    assert (sim.method.lr, sim.method.epochs, sim.method.batch_size) == (0.1, 1, 10)  # type: ignore[attr-defined]
    assert all(len(t.start) == job.label["cohort"] for t in sim.turns)
    drops = [m.p for m in sim.engine.net.module.modules() if isinstance(m, torch.nn.Dropout)]
    assert drops == [0.25, 0.5]


def test_own_scale_makes_training_samples_standard() -> None:
    federation = headline._own_scale(random_federation([40, 20], (3, 8, 8), 0.5))
    x = federation.inputs(torch.cat(federation.train), torch.float64)
    assert x.mean((0, 2, 3)).abs().max() < 1e-9
    assert (x.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-9


def test_accuracy_is_the_share_of_all_test_samples() -> None:
    """Not the mean over clients: they are of different size."""
    job = Job({}, {"name": "fedavg"}, random_federation([30, 90], (1, 8, 8), 0.5), "linear")
    sim = job.simulation("cpu", 2)
    done = sim.step()
    model, fed = sim.server_model(), job.federation
    rows = torch.cat(fed.test)
    logits = fed.inputs(rows).flatten(1) @ model["head.weight"].T + model["head.bias"]  # type: ignore[index]
    share = (logits.argmax(1) == fed.y[rows]).double().mean().item()
    assert pooled(done, "global") == pytest.approx(share)
    untested = Job(job.label, job.method, fed, "linear", options={"eval_every": 1000})
    assert measure(untested, "cpu")["accuracy"] is None


def test_cpu_job_is_the_split_of_all_of_mnist(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = random_pool(70_000, (1, 28, 28))
    monkeypatch.setattr("idiolect.bench.round_time._mnist", lambda quick: pool)
    federation = cpu_jobs(quick=False)[0].federation
    whole = federation.sizes("train") + federation.sizes("test")
    assert int(whole.sum()) == 70_000 and len(whole) == 20
    assert (federation.sizes("train") == (0.75 * whole).long()).all()
    assert whole.max() > 2 * whole.min()


def test_scale_counts_what_every_client_keeps() -> None:
    """Private models of all clients lie on the disk before the first round, not only those of the
    clients that took part; a growing file is counted once."""
    rows = bench.run("scale", "cpu", quick=True, clients="20,40", rounds=1)["rows"]
    assert [row["clients"] for row in rows] == [20, 40]
    for row in rows:
        models = row["clients"] * 41_410 * 4 / 2**20
        assert models <= row["disk_MiB"] < 1.2 * models


def test_a_round_does_not_compare_the_names_of_all_clients() -> None:
    """14 ms a round with 100,000 clients, a third of a round of small networks."""

    class Names(tuple[str, ...]):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Names.compared += 1
            return super().__eq__(other)

        __hash__ = tuple.__hash__

    federation = random_federation([30] * 4, (1, 8, 8), 0.5)
    object.__setattr__(federation, "names", Names(federation.names))
    sim = Job({}, {"name": "fedavg"}, federation, "linear").simulation("cpu", 3)
    sim.step()
    first = Names.compared
    sim.step()
    assert Names.compared == first


@pytest.mark.parametrize("given", ["0", "10,x", "-5", "1e3"])
def test_numbers_of_clients(given: str) -> None:
    done = CliRunner().invoke(app, ["bench", "scale", "--quick", "--clients", given])
    assert done.exit_code == 2 and "--clients takes numbers" in done.stderr


def test_figure_of_clients(tmp_path: Path) -> None:
    """A line for each machine, named."""
    script = Path(__file__).parents[2] / "benchmarks/clients_figure.py"
    rows = [{"clients": n, "cohort": 100, "seconds": 0.1} for n in (1000, 10_000)]
    for name, device in (("NVIDIA H200", "cuda"), ("AMD EPYC", "cpu")):
        machine = {"device": device, "device_name": name, "threads": 2}
        (tmp_path / f"{device}.json").write_text(json.dumps({"rows": rows, "machine": machine}))
    files = [str(tmp_path / "cuda.json"), str(tmp_path / "cpu.json")]
    command = [sys.executable, str(script), *files, "-o", str(tmp_path / "scale.svg")]
    subprocess.run(command, check=True)
    drawn = (tmp_path / "scale.svg").read_text()
    for words in ("NVIDIA H200", "AMD EPYC, 2 threads", "10,000", "seconds a round of 100 clients"):
        assert words in drawn


def test_uneven_ends() -> None:
    sizes = uneven(20, 596, 4768)
    assert (sizes[0], sizes[-1], sizes.sum()) == (596, 4768, 59_621)


def test_commit_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What we are told counts more than what git says: a copy may have an old history."""
    monkeypatch.setattr(environment, "_git", lambda _, what, *__: "def" * (what == "rev-parse"))
    monkeypatch.setenv("IDIOLECT_COMMIT", "abc123")
    assert environment.commit() == "abc123"
    monkeypatch.delenv("IDIOLECT_COMMIT")
    assert environment.commit() == "def"


def test_a_start_without_its_data_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its programs have caches of their own, and look for data where this process does."""
    monkeypatch.delenv("IDIOLECT_DATA", raising=False)
    monkeypatch.setenv("IDIOLECT_CACHE", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    taken = iter([3.0, 1.0, 9.0, 2.0, 2.0, 2.0])
    monkeypatch.setattr(start, "_ended", lambda command, home: next(taken, 1.0))
    monkeypatch.setattr(start, "_rounds", lambda command, home: {"seconds": next(taken, 7.0)})
    rows = list(start.start("cpu", quick=False))
    assert rows[0] == {"what": "import torch", "first_s": 3.0, "seconds": 2.0}
    assert rows[2] == {"what": "run, digits", "first_s": 7.0, "seconds": 7.0}
    assert rows[3] == {"what": "run, cifar10: not found"}
    there = start._environment(tmp_path / "own")
    assert there["IDIOLECT_DATA"] == str(tmp_path / "data")
    assert there["IDIOLECT_CACHE"] == str(tmp_path / "own" / "idiolect")
    assert "PYTHONDONTWRITEBYTECODE" not in there


def test_a_program_that_does_not_start_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such method"):
        start._ended([sys.executable, "-c", "raise SystemExit('no such method')"], tmp_path)
