"""Three sites on a real SuperLink give the simulator's numbers (float64, 1e-9)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idiolect.core import tree
from idiolect.deploy import experiment, superlink
from idiolect.deploy.client_state import StateStore
from idiolect.deploy.processes import ChildProcesses
from idiolect.deploy.proxy import serve_proxy
from idiolect.deploy.proxy_notes import ProxyNotes
from idiolect.deploy.terms import FederationTerms
from idiolect.runs import checkpoint
from idiolect.runs.history import ClientLog
from tests.deploy.federation_processes import federation, needs_flower
from tests.deploy.local_federation import config, simulated
from tests.deploy.test_server import METHODS

CLIENTS = 3


def check_against_simulator(run: Path, folder: Path, made: dict[str, Any]) -> None:
    sim = simulated(made, CLIENTS)
    rounds = [sim.start(), *(sim.step() for _ in range(made["rounds"]))]
    theirs, _ = sim.state()
    saved = checkpoint.read(run / "checkpoint", checkpoint.rounds(run / "checkpoint")[0])
    assert saved is not None and saved.round == made["rounds"]
    names = [n for n in theirs if n.startswith(("server/", "tables/"))]
    assert names
    for leaf in names:
        _close(saved.tensors[leaf], theirs[leaf], f"{run.name} {leaf}")
    name = experiment.read_terms(run).experiment
    for i in range(CLIENTS):
        state = StateStore(folder / f"state{i}").load(name)
        assert state is not None
        private = tree.leaves(sim.mine[[i]])
        assert set(private) == set(tree.leaves(state.mine))
        for leaf, value in tree.leaves(state.mine).items():
            _close(value, private[leaf], f"{run.name} client {i} {leaf}")
    table = ClientLog(run)
    table.load()
    for done in rounds:
        for name, column in done.clients.items():
            ours = table.rounds[done.round][name]
            np.testing.assert_allclose(ours, column, atol=1e-9, err_msg=f"{run.name} {name}")


def _close(ours: Any, theirs: Any, what: str) -> None:
    np.testing.assert_allclose(ours.double(), theirs.double(), atol=1e-9, rtol=0, err_msg=what)


def ended(run: Path) -> dict[str, Any] | None:
    status = experiment.read_status(run)
    return status if status["state"] in ("done", "failed") else None


def run_together(tmp_path: Path, methods: list[str], rounds: int, *client: str) -> None:
    """All methods at once over one SuperLink: a site is in several experiments."""
    with federation(tmp_path) as fed:
        for i in range(CLIENTS):
            fed.client(i, *client)
        children = ChildProcesses(tmp_path / "logs")
        close = None
        try:
            port, home = superlink.start_superlink(children, tmp_path, None)
            ProxyNotes(tmp_path).allow(1 << 30)  # several experiments behind one proxy
            close = serve_proxy("127.0.0.1", fed.port, f"http://127.0.0.1:{port}", None, tmp_path)
            made = {}
            for number, name in enumerate(methods):
                made[name] = config(name, rounds=rounds, **METHODS[name])
                run = tmp_path / name
                terms = FederationTerms(f"{number:032x}", CLIENTS, timeout=200.0)
                experiment.plan(run, made[name], terms)
                superlink.submit(home, tmp_path, run)
            for name in methods:
                status = fed.wait(name, partial(ended, tmp_path / name))
                assert status["state"] == "done", f"{status}\n{fed.story()}"
        finally:
            if close is not None:
                close()
            children.end()
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
