"""The server's rounds against the simulator; no network."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from idiolect import models
from idiolect.deploy.client import Client
from idiolect.errors import UserError
from tests.deploy.local_federation import (
    LocalTransport,
    assert_same_private,
    assert_same_server,
    clients_on_disk,
    config,
    served,
    simulated,
    site_data,
)

METHODS = {
    "fedavg": {},
    "fedper": {},
    "spfl": {"gamma": 2},
    "feddwa": {"top_k": 2},
    "pflego": {"tau": 3},
    "fedas": {"epochs": 1},
    "lga": {"steps": 2, "batch_size": 8},
    "plga": {"steps": 2, "batch_size": 8},
}


@pytest.mark.parametrize("method", METHODS)
def test_sites_give_the_simulators_numbers(method: str, tmp_path: Path) -> None:
    made = config(method, rounds=3, **METHODS[method])
    here = clients_on_disk(tmp_path, 3)
    ours, theirs = served(made, LocalTransport(here), 3), simulated(made, 3)
    first = (ours.start(), theirs.start())
    pairs = [first, *((ours.step(), theirs.step()) for _ in range(3))]
    for mine, his in pairs:
        assert (mine.started, mine.arrived) == (his.started, his.arrived)
        assert (mine.bytes_up, mine.bytes_down) == (his.bytes_up, his.bytes_down)
        assert mine.samples == his.samples
        assert set(mine.clients) == set(his.clients)
        for name, column in his.clients.items():
            np.testing.assert_allclose(mine.clients[name], column, atol=1e-9, err_msg=name)
        assert set(mine.logs) == set(his.logs)
    assert_same_server(ours, theirs)
    for site in here:
        assert_same_private(site, theirs)


def test_models_trained_further_untested_have_no_score(tmp_path: Path) -> None:
    """As in the simulator, where models are tested every other round."""
    half = {"kind": "fixed", "rate": 0.5}
    made = {**config("fedper", rounds=4), "participation": half, "eval_every": 2}
    ours = served(made, LocalTransport(clients_on_disk(tmp_path, 4)), 4)
    theirs = simulated(made, 4, participation=0.5, eval_every=2)
    pairs = [(ours.start(), theirs.start()), *((ours.step(), theirs.step()) for _ in range(4))]
    for mine, his in pairs:
        assert mine.started == his.started
        np.testing.assert_allclose(mine.clients["loss_after"], his.clients["loss_after"], atol=1e-9)
    assert set(pairs[3][0].started) - set(pairs[4][0].started)


def test_sites_with_adapters_and_kept_optimizers_give_the_simulators_numbers(
    tmp_path: Path,
) -> None:
    """A site that restarts goes on with what its optimizer remembers; its model is merged."""
    how = {"optimizer": "adam", "lr": 0.01, "keep_optimizer": True, "lr_schedule": "cosine"}
    made = config("fedper", rounds=3, **how)
    made["model"] = {"name": "mlp", "hidden": 8, "layers": 1, "adapt": "lora:2,head"}
    here = clients_on_disk(tmp_path, 3)
    transport = LocalTransport(here)
    ours, theirs = served(made, transport, 3), simulated(made, 3)
    ours.start()
    theirs.start()
    for _ in range(3):
        mine, his = ours.step(), theirs.step()
        assert (mine.bytes_up, mine.bytes_down) == (his.bytes_up, his.bytes_down)
        for site in here:
            again = Client(site.id, site_data(site.id), tmp_path / f"site{site.id}")
            transport.sites[1000 + site.id] = again
    assert_same_server(ours, theirs)
    plain = models.build(models.plain(made["model"]), (1, 8, 8), 3).double()
    for site in here:
        assert_same_private(site, theirs)
        [file] = (tmp_path / f"site{site.id}" / "models").glob("*.safetensors")
        plain.load_state_dict(load_file(file))
        card = json.loads(file.with_suffix(".json").read_text())
        assert "adapt" not in card["model"]


@pytest.mark.parametrize("method", METHODS)
def test_server_goes_on_from_its_checkpoint(method: str, tmp_path: Path) -> None:
    """Killed after clients answered round 2 and before it was aggregated: nothing is done twice."""
    made = config(method, rounds=3, **METHODS[method])
    here = clients_on_disk(tmp_path, 3)
    transport = LocalTransport(here)
    first = served(made, transport, 3)
    first.start()
    first.step()
    saved = first.state()
    saved = ({n: v.clone() for n, v in saved[0].items()}, json.loads(json.dumps(saved[1])))
    first.step()  # the clients have this on disk, the checkpoint does not
    transport.answers.clear()
    for site in here:  # every client restarts too
        transport.sites[1000 + site.id] = Client(
            site.id, site_data(site.id), tmp_path / f"site{site.id}"
        )
    again = served(made, transport, 3)
    again.restore(*saved)
    again.step()
    again.step()
    theirs = simulated(made, 3)
    for _ in range(3):
        theirs.step()
    assert_same_server(again, theirs)
    for site in transport.sites.values():
        assert_same_private(site, theirs)


def test_others_step_in_for_those_who_are_gone(tmp_path: Path) -> None:
    made = config("fedavg", rounds=1)
    made["participation"] = {"kind": "fixed", "rate": 0.34}
    transport = LocalTransport(clients_on_disk(tmp_path, 3))
    ours = served(made, transport, 3)
    drawn = ours.participation.draw([0, 1, 2], made["seed"], 0)
    assert len(drawn) == 1
    transport.online.remove(1000 + drawn[0])
    ours.enrolment._greeted = 0.0
    done = ours.step()
    assert len(done.arrived) == 1 and done.arrived != drawn
    assert ours.registry.counts["gone"] == 1


class HalfFrozen(nn.Module):
    """A model whose first layer does not train."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        self.first = nn.Linear(math.prod(shape), 4)
        self.first.requires_grad_(False)
        self.last = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.flatten(1)))


def test_given_values_of_frozen_layers_are_refused(tmp_path: Path) -> None:
    """The simulator uses them; sites, which make frozen layers themselves, would not know them."""
    made = config("fedavg", rounds=1)
    name = f"{__name__}:HalfFrozen"
    made["model"] = {"name": name}
    here = [Client(i, site_data(i), tmp_path / f"site{i}", model=name) for i in range(2)]
    transport = LocalTransport(here)
    data = site_data(0)
    mine = [name]
    whole = models.build(made["model"], data.shape, data.classes, made["seed"], mine).state_dict()
    made["init"] = str(tmp_path / "start.safetensors")
    save_file(whole, made["init"])
    assert served(made, transport, 2, mine).step().arrived == [
        0,
        1,
    ]  # the values the sites make too
    save_file({n: v + 1 for n, v in whole.items()}, made["init"])
    with pytest.raises(UserError, match=r"gives the frozen layer 'first\.weight' other values"):
        served(made, transport, 2, mine)
