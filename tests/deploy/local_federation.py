"""A small federation in one process."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from idiolect.data import Federation
from idiolect.deploy.client import Client
from idiolect.deploy.enrolment import Enrolment
from idiolect.deploy.in_process import LocalTransport
from idiolect.deploy.server import FederationServer
from idiolect.deploy.terms import FederationTerms
from idiolect.runs import config as settings
from idiolect.simulation.simulation import Simulation

EXPERIMENT = "0123456789abcdef"


def arrays(client: int, classes: int = 3) -> dict[str, np.ndarray]:
    """One site's own data; sizes differ from site to site."""
    rng = np.random.default_rng(100 + client)
    means = np.random.default_rng(7).normal(size=(classes, 1, 8, 8))

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, classes, n)
        return means[y] + rng.normal(size=(n, 1, 8, 8)), y

    (x, y), (x_test, y_test) = draw(20 + 7 * client), draw(11)
    return {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}


def site_data(client: int) -> Federation:
    return Federation.from_arrays([arrays(client)], classes=3)


def all_data(clients: int) -> Federation:
    return Federation.from_arrays([arrays(i) for i in range(clients)], classes=3)


def config(method: str, rounds: int = 2, **method_settings: Any) -> dict[str, Any]:
    flags = {
        "method": {"name": method, **method_settings},
        "model": {"name": "mlp"},
        "rounds": rounds,
        "dtype": "float64",
        "checkpoint_every": 1,
        "device": "cpu",
    }
    return settings.resolve(None, flags)


def simulated(made: dict[str, Any], clients: int, **options: Any) -> Simulation:
    from idiolect import methods, models

    data = all_data(clients)
    model = models.build(made["model"], data.shape, data.classes, made["seed"])
    return Simulation(
        methods.build(made["method"]),
        data,
        model,
        rounds=made["rounds"],
        seed=made["seed"],
        engine="loop",
        device="cpu",
        dtype=made["dtype"],
        **options,
    )


def clients_on_disk(folder: Path, clients: int) -> list[Client]:
    return [Client(i, site_data(i), folder / f"site{i}") for i in range(clients)]


def served(
    made: dict[str, Any],
    transport: LocalTransport,
    clients: int,
    allow_code: Collection[str] = (),
    **terms: Any,
) -> FederationServer:
    """A server once all its clients have come."""
    how = {"poll": 0.001, "timeout": 20.0, "patience": 5.0} | terms
    enrolment = Enrolment(FederationTerms(EXPERIMENT, clients, **how), transport)
    enrolment.wait_for(clients)
    return FederationServer(made, enrolment, allow_code)


def assert_same_server(ours: FederationServer, theirs: Simulation, atol: float = 1e-9) -> None:
    mine, _ = ours.state()
    his, _ = theirs.state()
    names = [n for n in his if n.startswith(("server/", "tables/"))]
    assert names
    assert {n for n in mine if n.startswith(("server/", "tables/"))} == set(names)
    for name in names:
        gap = (mine[name].double() - his[name].double()).abs().max() if mine[name].numel() else 0.0
        assert float(gap) <= atol, f"{name}: off by {float(gap):.2e}"


def assert_same_private(site: Client, theirs: Simulation, atol: float = 1e-9) -> None:
    state = site.store.load(EXPERIMENT)
    assert state is not None
    from idiolect.core import tree

    ours = tree.leaves(state.mine)
    his = tree.leaves(theirs.mine[[site.id]])
    assert set(ours) == set(his)
    for name, value in his.items():
        gap = (
            (ours[name].double() - value.double()).abs().max() if value.numel() else torch.zeros(())
        )
        assert float(gap) <= atol, f"client {site.id} {name}: off by {float(gap):.2e}"
