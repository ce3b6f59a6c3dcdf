"""Three sites on a real SuperLink give the simulator's numbers (float64, 1e-9)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idiolect.core import tree
from idiolect.deploy import experiment as conduct
from idiolect.deploy import processes as launch
from idiolect.deploy.client_state import Memory
from idiolect.deploy.dispatch import Terms
from idiolect.deploy.proxy import open_door
from idiolect.runs import checkpoint
from idiolect.runs.history import ClientLog
from tests.deploy.federation_processes import field, needs_flower
from tests.deploy.local_federation import config, simulated
from tests.deploy.test_server import METHODS

CLIENTS = 3


def check_against_simulator(run: Path, folder: Path, made: dict[str, Any]) -> None:
    sim = simulated(made, CLIENTS)
    rounds = [sim.start(), *(sim.step() for _ in range(made["rounds"]))]
    theirs, _ = sim.state()
    saved = checkpoint.load(run / "checkpoint", print)
    assert saved is not None and saved.round == made["rounds"]
    names = [n for n in theirs if n.startswith(("server/", "tables/"))]
    assert names
    for name in names:
        _close(saved.tensors[name], theirs[name], f"{run.name} {name}")
    experiment = conduct.read_terms(run).experiment
    for i in range(CLIENTS):
        state = Memory(folder / f"state{i}").load(experiment)
        assert state is not None
        private = tree.leaves(sim.mine[[i]])
        assert set(private) == set(tree.leaves(state.mine))
        for name, value in tree.leaves(state.mine).items():
            _close(value, private[name], f"{run.name} client {i} {name}")
    table = ClientLog(run)
    table.load()
    for done in rounds:
        for name, column in done.clients.items():
            ours = table.rounds[done.round][name]
            np.testing.assert_allclose(ours, column, atol=1e-9, err_msg=f"{run.name} {name}")


def _close(ours: Any, theirs: Any, what: str) -> None:
    np.testing.assert_allclose(ours.double(), theirs.double(), atol=1e-9, rtol=0, err_msg=what)


def ended(run: Path) -> dict[str, Any] | None:
    status = conduct.read_status(run)
    return status if status["state"] in ("done", "failed") else None


def run_together(tmp_path: Path, methods: list[str], rounds: int, *client: str) -> None:
    """All methods at once over one SuperLink: a site is in several experiments."""
    with field(tmp_path) as site:
        for i in range(CLIENTS):
            site.client(i, *client)
        family = launch.Family(tmp_path / "logs")
        close = None
        try:
            inside, home = launch.start_superlink(family, tmp_path, None)
            close = open_door("127.0.0.1", site.port, f"http://127.0.0.1:{inside}", None)
            made = {}
            for number, name in enumerate(methods):
                made[name] = config(name, rounds=rounds, **METHODS[name])
                run = tmp_path / name
                experiment = f"{number:032x}"
                conduct.plan(run, made[name], Terms(experiment, CLIENTS, timeout=200.0))
                launch.submit(home, tmp_path, run)
            for name in methods:
                status = site.wait(name, partial(ended, tmp_path / name))
                assert status["state"] == "done", f"{status}\n{site.story()}"
        finally:
            if close is not None:
                close()
            family.end()
    for name in methods:
        check_against_simulator(tmp_path / name, tmp_path, made[name])


@needs_flower
def test_two_methods_on_real_sites(tmp_path: Path) -> None:
    run_together(tmp_path, ["fedavg", "fedas"], rounds=2)


@needs_flower
@pytest.mark.heavy
def test_all_methods_on_real_sites(tmp_path: Path) -> None:
    run_together(tmp_path, list(METHODS), rounds=3)


@needs_flower
@pytest.mark.heavy
def test_a_process_per_message_gives_the_same_numbers(tmp_path: Path) -> None:
    run_together(tmp_path, ["fedas"], 2, "--worker", "flower")
