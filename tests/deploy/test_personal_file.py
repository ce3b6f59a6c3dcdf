"""Every site ends with its personal model as a file; one that was away gets it when it is back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from idiolect import models
from idiolect.cli.deploy import _resumed
from idiolect.deploy import experiment
from idiolect.deploy.terms import FederationTerms
from idiolect.errors import UserError
from idiolect.runs.history import ClientLog
from tests.deploy.local_federation import (
    EXPERIMENT,
    LocalTransport,
    clients_on_disk,
    config,
    simulated,
    site_data,
)


def started(run: Path, transport: LocalTransport, method: str, **terms: float) -> None:
    made = config(method, rounds=2)
    how = {"poll": 0.001, "timeout": 20.0, "patience": 5.0} | terms
    experiment.plan(run, made, FederationTerms(EXPERIMENT, 3, **how))  # type: ignore[arg-type]
    experiment.run_experiment(run, transport)


def accuracy(site: int, weights: dict[str, torch.Tensor]) -> float:
    """Of a plain module with these weights on the site's test samples."""
    data, made = site_data(site), config("fedavg")
    module = models.build(made["model"], data.shape, data.classes, made["seed"]).double()
    module.load_state_dict(weights)
    rows = data.test[0]
    with torch.no_grad():
        found = module.eval()(data.x[rows].double()).argmax(1)
    return float((found == data.y[rows]).double().mean())


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedbabu", "ditto"])
def test_every_site_ends_with_the_model_that_the_run_reports(method: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    started(run, LocalTransport(clients_on_disk(tmp_path, 3)), method)
    sim = simulated(config(method, rounds=2), 3)
    sim.start()
    for _ in range(2):
        sim.step()
    table = ClientLog(run)
    table.load()
    for i in range(3):
        path = tmp_path / f"site{i}" / "models" / f"{EXPERIMENT}.safetensors"
        ours, theirs = load_file(path), sim.personal_model(i)
        assert set(ours) == set(theirs)
        for name, value in theirs.items():
            np.testing.assert_allclose(ours[name], value, atol=1e-9, err_msg=name)
        assert accuracy(i, ours) == pytest.approx(table.rounds[2]["accuracy_before"][i])
        card = json.loads(path.with_suffix(".json").read_text())
        assert (card["client"], card["rounds"], card["method"]["name"]) == (i, 2, method)
    assert experiment.without_model(run) == []
    with pytest.raises(UserError, match="is finished"):
        _resumed(run, None)


def test_site_that_was_away_gets_its_model_at_its_next_contact(tmp_path: Path) -> None:
    run = tmp_path / "run"
    transport = LocalTransport(clients_on_disk(tmp_path, 3))
    transport.hold = lambda answer: (
        answer.meta["client"] == 1 and answer.kind == "fit" and answer.meta["version"] == 1
    )
    started(run, transport, "fedper", timeout=0.5)
    mine = tmp_path / "site1" / "models" / f"{EXPERIMENT}.safetensors"
    assert experiment.without_model(run) == [1] and not mine.exists()
    assert _resumed(run, None) == run
    before = {p.name: p.read_bytes() for p in run.iterdir() if p.is_file()}
    transport.hold = lambda answer: False
    experiment.run_experiment(run, transport)
    assert experiment.without_model(run) == []
    assert accuracy(1, load_file(mine)) >= 0
    asked = [p.meta["keep"] for n, p in transport.sent if n == 1001 and p.kind == "evaluate"]
    assert asked[-1] is True and asked.count(True) == 1
    assert {p.name: p.read_bytes() for p in run.iterdir() if p.is_file()} == before


def test_server_writes_the_shared_model_if_asked(tmp_path: Path) -> None:
    for wanted in (False, True):
        run = tmp_path / f"run{wanted}"
        started(run, LocalTransport(clients_on_disk(tmp_path / run.name, 3)), "fedavg",
                save_models=wanted)  # fmt: skip
        assert (run / "models" / "last" / "server.safetensors").exists() is wanted
