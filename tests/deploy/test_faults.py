"""What goes wrong at real sites, with real processes."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idiolect.core import tree
from idiolect.deploy import experiment
from idiolect.deploy.client_state import StateStore
from idiolect.runs import checkpoint
from idiolect.simulation.schedule import Turn
from idiolect.simulation.simulation import Simulation
from tests.deploy.federation_processes import (
    LocalProcesses,
    descendants,
    events,
    federation,
    journal,
    needs_flower,
)
from tests.deploy.local_federation import config, simulated
from tests.deploy.test_server import METHODS

pytestmark = [needs_flower, pytest.mark.heavy]

STRANGE = ("--data", "tests.deploy.faulty_client:load")


def begin(
    fed: LocalProcesses, method: str, rounds: int, *more: str, keys: bool = False, **env: str
) -> None:
    options = [f"--set=method.{k}={v}" for k, v in METHODS.get(method, {}).items()]
    fed.server(
        *(method, "--clients", "3", "--rounds", str(rounds), "--dtype", "float64"),
        *("--model", "mlp", "--out", "run", *options, *more),
        keys=keys,
        **env,
    )


def replay(run: Path, method: str) -> Simulation:
    """The simulator on the schedule the real federation turned out to have."""
    done = [e for e in events(run) if e["round"] > 0]
    undone = {(n["client"], n["version"]) for n in journal(run, "lost") if n["kind"] == "fit"}
    unused = {(n["client"], n["version"]) for n in journal(run, "refused")}
    unused |= {(n["client"], n["version"]) for n in journal(run, "late")}
    turns = []
    for t, event in enumerate(done):
        arrive = {i: t - s for i, s in zip(event["arrived"], event["staleness"], strict=True)}
        start = [i for i in event["started"] if (i, t) not in undone]
        turns.append(Turn(start, arrive, [i for i in start if (i, t) in unused]))
    made = config(method, rounds=len(turns), **METHODS.get(method, {}))
    sim = simulated(made, 3, schedule=turns)
    for _ in turns:
        sim.step()
    return sim


def at_home(run: Path) -> list[int]:
    """Clients that are not in the middle of something when the last round ends."""
    last = events(run)[-1]
    return [i for i in range(3) if i not in last["started"] or i in last["arrived"]]


def assert_same(run: Path, folder: Path, sim: Simulation) -> None:
    theirs, _ = sim.state()
    saved = checkpoint.read(run / "checkpoint", checkpoint.rounds(run / "checkpoint")[0])
    assert saved is not None
    names = [n for n in theirs if n.startswith(("server/", "tables/"))]
    assert names
    for name in names:
        ours = saved.tensors[name].double()
        np.testing.assert_allclose(ours, theirs[name].double(), atol=1e-9, rtol=0, err_msg=name)
    name = experiment.read_terms(run).experiment
    for i in at_home(run):
        state = StateStore(folder / f"state{i}").load(name)
        assert state is not None
        private = tree.leaves(sim.mine[[i]])
        for leaf, value in tree.leaves(state.mine).items():
            np.testing.assert_allclose(
                value.double(), private[leaf].double(), atol=1e-9, rtol=0, err_msg=f"{i} {leaf}"
            )


def test_client_killed_mid_round_rejoins_with_its_state(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with federation(tmp_path) as fed:
        fed.run("keys", "keys", "keys", "--clients", "3")
        assert fed.finished("keys") == 0
        begin(fed, "fedas", 14, "--timeout", "40", keys=True)
        for i in range(2):
            fed.client(i, keys=True)
        fed.client(2, *STRANGE, keys=True, FAULT="before:1:600")
        fed.wait("client 2 at work in round 2", lambda: (tmp_path / "slow2").exists())
        fed.kill("client2")
        name = experiment.read_terms(run).experiment
        state = StateStore(tmp_path / "state2").load(name)
        assert state is not None and state.fitted.version == 0  # round 1 is safe on disk
        fed.wait("round 2", lambda: any(e["round"] == 2 for e in events(run)))
        fed.client(2, keys=True)
        assert fed.finished() == 0, fed.story()
    done = {e["round"]: e for e in events(run)}
    assert done[1]["arrived"] == [0, 1, 2]
    assert done[2]["started"] == [0, 1, 2] and done[2]["arrived"] == [0, 1]
    assert done[14]["arrived"] == [0, 1, 2], fed.story()
    assert_same(run, tmp_path, replay(run, "fedas"))


def test_a_port_that_was_taken_meanwhile(tmp_path: Path) -> None:
    """Server and client found a port free that is not when Flower comes to listen there."""
    with federation(tmp_path) as fed, socket.create_server(("127.0.0.1", 0)) as somebody:
        taken = str(somebody.getsockname()[1])
        begin(fed, "fedavg", 2, TAKEN_PORT=taken)
        for i in range(3):
            fed.client(i, **({"TAKEN_PORT": taken} if i == 1 else {}))
        assert fed.finished() == 0, fed.story()
        assert "port was taken" in fed.out("client1")
    assert "already in use" in (tmp_path / "run/flower/logs/superlink.log").read_text()
    assert [e["arrived"] for e in events(tmp_path / "run")][1:] == [[0, 1, 2]] * 2


def hold_an_answer(fed: LocalProcesses, run: Path) -> int:
    """Until four rounds have passed over client 2's answer; returns the round it is of, from 1."""
    fed.wait("client 2 done with a round", lambda: (fed.folder / "slow2").exists())
    fed.wait("its version", lambda: (fed.folder / "slow2").read_text())
    asked = int((fed.folder / "slow2").read_text()) + 1
    fed.wait("four rounds", lambda: any(e["round"] >= asked + 3 for e in events(run)))
    (fed.folder / "go2").touch()
    return asked


def test_late_answer_is_used_by_an_asynchronous_method(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with federation(tmp_path) as fed:
        begin(fed, "plga", 10, "--window", "8", "--arrivals", "2")
        for i in range(2):
            fed.client(i)
        fed.client(2, *STRANGE, FAULT="held:1")
        asked = hold_an_answer(fed, run)
        assert fed.finished() == 0, fed.story()
    late = [
        (e["round"], s)
        for e in events(run)
        for i, s in zip(e["arrived"], e["staleness"], strict=True)
        if i == 2 and e["round"] - s == asked
    ]
    assert len(late) == 1 and late[0][1] >= 3, late
    assert_same(run, tmp_path, replay(run, "plga"))


def test_late_answer_is_dropped_by_a_synchronous_method(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with federation(tmp_path) as fed:
        begin(fed, "fedavg", 10, "--window", "8", "--arrivals", "2")
        for i in range(2):
            fed.client(i)
        fed.client(2, *STRANGE, FAULT="held:1")
        asked = hold_an_answer(fed, run)
        assert fed.finished() == 0, fed.story()
    late = [n for n in journal(run, "late") if (n["client"], n["version"]) == (2, asked - 1)]
    assert len(late) == 1
    assert late[0]["round"] >= asked + 3  # three rounds after it should have been there
    done = events(run)
    assert all(s == 0 for e in done for s in e["staleness"])
    assert any(2 in e["arrived"] for e in done[late[0]["round"] :])
    assert_same(run, tmp_path, replay(run, "fedavg"))


@pytest.mark.parametrize("alone", [False, True], ids=["with its children", "alone"])
def test_server_killed_mid_round_goes_on(alone: bool, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with federation(tmp_path) as fed:
        fed.run("keys", "keys", "keys", "--clients", "3")
        assert fed.finished("keys") == 0
        begin(fed, "fedas", 4, keys=True)
        fed.client(0, keys=True)
        fed.client(1, keys=True)
        fed.client(2, *STRANGE, keys=True, FAULT="after:1:12")
        fed.wait("client 2 done with round 2", lambda: (tmp_path / "slow2").exists())
        fed.kill("server", alone)
        assert [e["round"] for e in events(run)] == [0, 1]
        assert not (run / "summary.json").exists()
        fed.server("--resume", "run", name="again", keys=True)
        assert fed.finished("again") == 0, fed.story()
    done = events(run)
    assert [e["round"] for e in done] == [0, 1, 2, 3, 4]
    assert all(e["arrived"] == [0, 1, 2] for e in done[1:])
    # As if nothing had happened: no round is lost, none is applied twice, nothing trained twice.
    assert_same(run, tmp_path, replay(run, "fedas"))
    worker = (tmp_path / "state2" / "logs" / "worker.log").read_text()
    assert worker.count("round 2: trained") == 1
    assert worker.count("round 2: answered again from disk") >= 1


def test_bad_answers_are_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with federation(tmp_path) as fed:
        begin(fed, "fedavg", 5)
        fed.client(0)
        fed.client(1)
        fed.client(2, *STRANGE, FAULT="nan:0,shape:1,version:2,giant:3")
        assert fed.finished() == 0, fed.story()
    refused = journal(run, "refused")
    assert [n["version"] for n in refused] == [0, 1, 2, 3]
    said = ["holds NaN", "has shape", "version is 9, asked was 2", "an answer of more than"]
    for note, words in zip(refused, said, strict=True):
        assert note["client"] == 2 and words in note["reason"], note
    done = events(run)
    assert [e["arrived"] for e in done[1:]] == [[0, 1]] * 4 + [[0, 1, 2]]
    assert_same(run, tmp_path, replay(run, "fedavg"))


def test_full_disk_at_a_client(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with federation(tmp_path) as fed:
        begin(fed, "fedas", 6)
        for i in range(3):
            fed.client(i)
        fed.wait("round 1", lambda: any(e["round"] == 1 for e in events(run)))
        worker = next(p for p in descendants(fed.processes["client1"].pid) if _is_worker(p))
        # No file of this process may grow beyond 2 kB: to the program, a disk that is full.
        whole = resource.prlimit(worker, resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        fed.wait("a failure", lambda: journal(run, "lost"))
        resource.prlimit(worker, resource.RLIMIT_FSIZE, whole)
        assert fed.finished() == 0, fed.story()
    lost = [n for n in journal(run, "lost") if n["kind"] == "fit"]
    assert lost and all(n["client"] == 1 and "disk: " in n["reason"] for n in lost)
    done = events(run)
    assert any(e["arrived"] == [0, 2] for e in done)
    assert done[-1]["arrived"] == [0, 1, 2]
    assert_same(run, tmp_path, replay(run, "fedas"))


def _is_worker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"idiolect.deploy.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def memory(pids: list[int]) -> int:
    """Resident memory of processes, in MB, shared pages counted once per process (Linux)."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            total += pages * os.sysconf("SC_PAGE_SIZE")
    return total // 1_000_000


def grown(fed: LocalProcesses, names: list[str]) -> dict[str, Any]:
    return {n: memory([fed.processes[n].pid, *descendants(fed.processes[n].pid)]) for n in names}


def test_sixteen_clients_without_a_leak(tmp_path: Path) -> None:
    run = tmp_path / "run"
    clients = 16
    with federation(tmp_path) as fed:
        fed.server(
            *("fedas", "--clients", str(clients), "--rounds", "6", "--model", "mlp"),
            *("--set=method.epochs=1", "--out", "run", "--timeout", "500"),
        )
        for i in range(clients):
            fed.client(i)
        names = list(fed.processes)
        fed.wait("round 1", lambda: any(e["round"] == 1 for e in events(run)), 900)
        before = grown(fed, names)
        fed.wait("round 6", lambda: any(e["round"] == 6 for e in events(run)), 900)
        after = grown(fed, names)
        assert fed.finished() == 0, fed.story()
    done = events(run)
    assert all(len(e["arrived"]) == clients for e in done[1:])
    print(f"server MB {before['server']} -> {after['server']}")
    each = [(before[n], after[n]) for n in names if n != "server"]
    print(f"clients MB {sum(b for b, _ in each)} -> {sum(a for _, a in each)}")
    assert after["server"] < before["server"] + 60
    assert sum(a for _, a in each) < 1.08 * sum(b for b, _ in each) + 100
