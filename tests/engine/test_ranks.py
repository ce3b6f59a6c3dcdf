"""Clients shared among processes: two ranks give the numbers and run directories of one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from idiolect.core.tree import Tree
from idiolect.engine.ranks import (
    CPU,
    Ranks,
    _as_bytes,
    _gather,
    _layout,
    by_itself,
    gpu_of_this_rank,
    joined,
)
from idiolect.errors import UserError
from idiolect.runs import build, checkpoint, directory, history
from idiolect.runs import execute as runs
from tests.engine.ranks_program import CASES, OTHERS, resolved, solve, write_runs

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def torchrun(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TORCHRUN, *command],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )


def environment() -> dict[str, str]:
    source = str(Path(runs.__file__).parents[2])
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": source}


def stopped(config: dict[str, Any], out: Path) -> None:
    """A run whose process vanished in round 3 of 4."""
    sim = build.build(config)
    step = sim.step

    def dies() -> Any:
        if sim.round == 2:
            raise KeyError("vanished")
        return step()

    sim.step = dies  # type: ignore[method-assign]
    with pytest.raises(KeyError):
        runs.execute(config, out, build=lambda _: sim)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks wrote."""
    out = tmp_path_factory.mktemp("two")
    stopped(resolved("plga", 0, stragglers={"count": 2}), out / "resumed")
    done = torchrun("-m", "tests.engine.ranks_program", str(out))
    assert done.returncode == 0, done.stderr
    assert not done.stdout
    return out


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("one")
    write_runs(out)
    return out


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_give_the_numbers_of_one(case: str, two: Path) -> None:
    agree(CASES[case](), two, case)


@pytest.mark.heavy
def test_with_every_other_method_too(tmp_path: Path) -> None:
    done = torchrun("-m", "tests.engine.ranks_program", str(tmp_path), *OTHERS)
    assert done.returncode == 0, done.stderr
    for name in OTHERS:
        agree(solve(name), tmp_path, name)


def agree(alone: Tree, folder: Path, case: str) -> None:
    first, second = (load_file(folder / f"{case}.{rank}.safetensors") for rank in (0, 1))
    assert set(first) == set(second) == set(alone)
    for name, value in alone.items():
        # Both hold the same server and the same clients, to the last bit.
        close(second[name], first[name], f"{case}: {name} of the second rank", within=0)
        # FedALA goes on until the last of a stack has settled: how much work that is depends on
        # who is in it, the results do not.
        if case != "fedala" or not name.endswith("/samples"):
            close(first[name], value, f"{case}: {name}")


def close(ours: Tensor, theirs: Tensor, what: str, within: float = 1e-9) -> None:
    torch.testing.assert_close(
        ours, theirs, rtol=within, atol=within, equal_nan=True, msg=lambda text: f"{what}: {text}"
    )


@pytest.mark.parametrize("name", ["one", "seed0", "seed1", "resumed"])
def test_two_ranks_write_the_directory_of_one(name: str, one: Path, two: Path) -> None:
    ours, theirs = two / name, one / name
    assert files(ours) == files(theirs)
    assert (ours / "config.yaml").read_text() == (theirs / "config.yaml").read_text()
    same(summary(ours), summary(theirs))
    for a, b in zip(directory.read_events(ours), directory.read_events(theirs), strict=True):
        same(timeless(a), timeless(b))
    table, expected = clients(ours), clients(theirs)
    assert list(table) == list(expected)
    for column, values in expected.items():
        np.testing.assert_allclose(table[column], values, rtol=1e-9, atol=1e-9, err_msg=column)
    for file in files(theirs):
        if file.endswith(".safetensors"):
            got, wanted = load_file(ours / file), load_file(theirs / file)
            assert set(got) == set(wanted)
            for leaf, value in wanted.items():
                close(got[leaf], value, f"{file}: {leaf}")
    assert json.loads((theirs / "env.json").read_text())["ranks"] == 1
    if name != "resumed":  # env.json is from the beginning
        assert json.loads((ours / "env.json").read_text())["ranks"] == 2


def files(out: Path) -> set[str]:
    return {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}


def clients(out: Path) -> dict[str, np.ndarray]:
    log = history.ClientLog(out)
    log.load()
    return log.table()


def summary(out: Path) -> dict[str, Any]:
    return timeless(json.loads((out / "summary.json").read_text()))


def timeless(facts: dict[str, Any]) -> dict[str, Any]:
    gone = ("seconds", "seconds_eval", "samples_per_second", "time")
    return {k: v for k, v in facts.items() if k not in gone}


def same(ours: Any, theirs: Any, at: str = "") -> None:
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs), at
        for key, value in theirs.items():
            same(ours[key], value, f"{at}.{key}")
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-9), at
    else:
        assert ours == theirs, at


# --- the command line ---


def test_compare_speaks_and_writes_once(tmp_path: Path) -> None:
    tiny = ["--clients", "4", "--model", "mlp", "--rounds", "1", "--device", "cpu"]
    done = torchrun("-m", "idiolect", "compare", "local", "fedavg", *tiny, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tables: ") == 1 and done.stdout.count("report: ") == 1
    assert done.stderr.count("fedavg seed 0  round 1/1") == 1
    out = tmp_path / "runs" / "compare-digits-dirichlet"
    assert files(out) >= {"compare.md", "compare.csv", "fedavg-seed0/summary.json"}


def test_a_mistake_is_said_once(tmp_path: Path) -> None:
    done = torchrun("-m", "idiolect", "run", "fedavgg", "--device", "cpu", cwd=tmp_path)
    assert done.returncode != 0
    assert done.stderr.count("did you mean 'fedavg'") == 1 and not done.stdout


BREAKS = """
import sys, os, signal
from idiolect.engine.ranks import CPU, joined
from idiolect.runs.interruption import stop_requests
with joined() as ranks, stop_requests():
    if ranks.rank == 1:
        {how}
    ranks.combine({{}}, [3, 2], CPU)
    ranks.agree(lambda: 1)
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("1 / 0", "ZeroDivisionError"),
        pytest.param("os._exit(9)", "another process of this run is gone", marks=pytest.mark.heavy),
    ],
)
def test_one_failing_rank_ends_the_others(tmp_path: Path, how: str, said: str) -> None:
    (tmp_path / "breaks.py").write_text(BREAKS.format(how=how))
    done = torchrun(str(tmp_path / "breaks.py"))
    assert done.returncode != 0
    assert said in done.stderr
    assert ("is gone" in done.stderr) == ("is gone" in said)  # what follows is not said on top


@pytest.mark.heavy
def test_a_stop_request_to_one_rank_stops_all_with_everything_saved(tmp_path: Path) -> None:
    out = tmp_path / "run"
    tiny = ["--clients", "4", "--model", "mlp", "--rounds", "2000", "--device", "cpu"]
    command = [*TORCHRUN, "-m", "idiolect", "run", "fedavg", *tiny, "--out", str(out)]
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while len(directory.read_events(out)) < 3:
        assert process.poll() is None
        time.sleep(0.05)
    mine = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(mine[-1]), signal.SIGINT)
    _, said = process.communicate(timeout=100)
    done = directory.read_events(out)[-1]["round"]
    assert process.returncode != 0 and said.count(f"stopped after round {done} of 2000") == 1
    assert checkpoint.rounds(out / "checkpoint")[0] == done


# --- in one process ---


def test_shares_are_balanced_and_rank_0_has_the_largest() -> None:
    shares = Ranks(0, 3).shares([5, 100, 40, 60, 1])
    assert shares == [[1], [3], [0, 2, 4]]
    assert Ranks(2, 3).shares([5, 100, 40, 60, 1]) == shares
    assert Ranks(0, 3).shares([0, 0, 0, 0]) == [[0, 3], [1], [2]]
    assert Ranks(0, 3).shares([7]) == [[0], [], []]


def test_by_itself_a_rank_does_all_and_shares_nothing() -> None:
    """Also inside its own share of something: nobody would answer."""
    two = Ranks(0, 2)
    with by_itself():
        assert two.share([3, 2, 1]) == [0, 1, 2]
        done = {"who": {"k": torch.arange(3)}}
        assert two.combine(done, [3, 2, 1], CPU) is done
    assert two.share([3, 2, 1]) == [0]


def test_alone_without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined() as ranks:
        assert ranks == Ranks.current() == Ranks(0, 1)
        assert ranks.agree(lambda x: x, 3) == 3 and ranks.any(True) and not ranks.any(False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UserError, match="start by torchrun"), joined():
        pass


def test_every_rank_has_its_gpu_of_this_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(Ranks, "current", staticmethod(lambda: Ranks(3, 4)))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert gpu_of_this_rank(torch.device("cuda")) == torch.device("cuda", 1) and chosen == [1]
    assert gpu_of_this_rank(torch.device("cpu")) == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match="--nproc-per-node 2"):
        gpu_of_this_rank(torch.device("cuda"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_records_travel_between_gpus_as_they_are() -> None:
    """NCCL with one rank: rows of every type come back in the clients' order."""
    gpu = torch.device("cuda")
    leaves = {
        "model/w": torch.randn(3, 4, 5, device=gpu),
        "model/half": torch.randn(3, 7, device=gpu).bfloat16(),
        "count": torch.arange(3, device=gpu),
        "has": torch.tensor([True, False, True], device=gpu),
        "nothing/": torch.empty(0),
    }
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    try:
        order = [2, 0, 1]
        found = _gather(leaves, _layout(leaves), [order], order, gpu)
    finally:
        torch.distributed.destroy_process_group()
    assert list(found) == list(leaves)
    for name, value in leaves.items():
        back = value if name == "nothing/" else value[[1, 2, 0]]
        assert found[name].dtype == value.dtype and torch.equal(found[name].cpu(), back.cpu())


def test_rows_of_one_value_become_bytes_however_they_lie() -> None:
    """PyTorch calls a column contiguous whatever the step within its rows of one."""
    values = torch.arange(5, dtype=torch.float64)
    column = values.as_strided((5, 1), (1, 5))
    assert torch.equal(_as_bytes(column).view(torch.float64)[:, 0], values)
