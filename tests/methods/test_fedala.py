"""FedALA: the learned weights in plain PyTorch, the cap on the loop, and FedAvg at all ones."""

from __future__ import annotations

import pytest
import torch

from idiolect import methods
from idiolect.errors import UserError
from tests.conftest import ENGINES
from tests.methods.plain import (
    CLIENTS,
    HEAD,
    NET,
    TINY,
    State,
    assert_same,
    combine,
    differ,
    gradient,
    sgd,
    share,
)
from tests.watched import Watched

FULL = {"name": "fedala", "lr": 0.2, "batch_size": "full", "epochs": 2}
EVERYTHING = {"data_share": 1.0}


def mixture(own: State, theirs: State, weight: State) -> State:
    return theirs | {n: own[n] + (theirs[n] - own[n]) * w for n, w in weight.items()}


def learned(own: State, theirs: State, weight: State, client, eta: float) -> State:
    """One projected gradient step on W, by the chain rule."""
    g = gradient(mixture(own, theirs, weight), client)
    moved = {n: w - eta * g[n] * (theirs[n] - own[n]) for n, w in weight.items()}
    return {n: w.clamp(0, 1) for n, w in moved.items()}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("index", "names"), [(2, HEAD), (0, tuple(NET.state_dict()))])
def test_rounds(engine: str, index: int, names: tuple[str, ...]) -> None:
    settings = {"eta": 40.0, "layer_index": index, "ala_epochs": 2, **EVERYTHING, **FULL}
    ran = Watched(settings, TINY, NET, 4, engine=engine)
    server = ran.sim.start_tree
    own = [dict(server)] * 4
    weight = [{n: torch.ones_like(server[n]) for n in names}] * 4
    for t in range(4):
        for _ in range({0: 0, 1: 2}.get(t, 1)):  # none, until the cap, then once a round
            weight = [learned(own[i], server, weight[i], c, 40.0) for i, c in enumerate(CLIENTS)]
        begin = [mixture(own[i], server, weight[i]) for i in range(4)]
        own = [sgd(begin[i], c, [torch.arange(len(c))] * 2, lr=0.2) for i, c in enumerate(CLIENTS)]
        server = combine(share(CLIENTS), own)
        for i in range(4):
            assert_same(ran.mine[t + 1][i]["weight"], weight[i], what=f"W {t} {i}")
            assert_same(ran.mine[t + 1][i]["model"], own[i], what=f"own {t} {i}")
            assert_same(ran.personal[t][i], mixture(own[i], server, weight[i]))
    spread = torch.cat([w.flatten() for w in weight[0].values()])
    assert 0 <= float(spread.min()) < float(spread.max()) <= 1


def test_all_ones_is_fedavg() -> None:
    """eta = 0 leaves W at one, bit for bit FedAvg."""
    settings = {"lr": 0.2, "batch_size": 4}
    ran = Watched({"name": "fedala", "eta": 0.0, "layer_index": 0, **settings}, TINY, NET, 3)
    fedavg = Watched({"name": "fedavg", **settings}, TINY, NET, 3)
    for t in range(3):
        for i in range(4):
            assert_same(ran.personal[t][i], fedavg.personal[t][i], 0)


def test_lower_layers_come_from_the_server() -> None:
    ran = Watched({"eta": 40.0, **EVERYTHING, **FULL}, TINY, NET, 3)
    for i in range(4):
        for n, w in ran.server[-1]["model"].items():
            assert torch.equal(ran.personal[-1][i][n], w) == (n not in HEAD)


def test_weights_and_models_are_not_shared_between_clients() -> None:
    """Each client's W follows from its own model and data alone, also with everybody together."""
    ran = Watched({"eta": 40.0, "ala_epochs": 1, **EVERYTHING, **FULL}, TINY, NET, 2)
    server = ran.server[0]["model"]
    ones = {n: torch.ones_like(server[n]) for n in HEAD}
    weights = [ran.mine[2][i]["weight"] for i in range(4)]
    for i, c in enumerate(CLIENTS):
        assert_same(weights[i], learned(ran.mine[1][i]["model"], server, ones, c, 40.0))
        assert all(differ(weights[i], weights[j]) for j in range(i))
    assert [set(fit.up) for fit in ran.fits] == [{"model"}] * 2


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        ({"threshold": 0.0, "ala_epochs": 17}, 17),  # never settles: the cap
        ({"threshold": 1e9, "window": 3}, 4),  # settles as soon as the window is full
        ({"threshold": 1e9}, 11),
    ],
)
def test_first_mixing_ends(settings: dict, passes: int) -> None:
    ran = Watched({**settings, **EVERYTHING, **FULL}, TINY, NET, 3)
    n = sum(len(c) for c in CLIENTS)
    assert [r.samples for r in ran.rounds] == [2 * n, (2 + passes) * n, 3 * n]


def test_a_share_of_the_data() -> None:
    """Only the drawn share of the samples moves W; another round draws another share."""
    some = Watched({"eta": 40.0, "data_share": 0.5, **FULL}, TINY, NET, 2)
    everything = Watched({"eta": 40.0, **EVERYTHING, **FULL}, TINY, NET, 2)
    assert differ(some.mine[2][1]["weight"], everything.mine[2][1]["weight"])


def test_newcomers_take_the_global_model() -> None:
    """A client first asked in round 2 has no model of its own to keep anything of."""
    schedule = [[0, 1], [0, 1], [0, 2]]
    ran = Watched({"eta": 40.0, **EVERYTHING, **FULL}, TINY, NET, 3, schedule=schedule)
    expected = sgd(ran.server[1]["model"], CLIENTS[2], [torch.arange(5)] * 2, lr=0.2)
    assert_same(ran.up(2, "model", 1), expected)


@pytest.mark.parametrize(
    "bad", [{"data_share": 0.0}, {"window": 0}, {"ala_epochs": 0}, {"eta": -1}]
)
def test_settings_are_checked(bad: dict) -> None:
    with pytest.raises(UserError):
        methods.build({"name": "fedala", **bad})


def test_only_clients_that_learn_weights_are_counted() -> None:
    """The first client is new in the second round, and mixes nothing yet."""
    who = [[1, 2], [0, 1, 2], [0, 1, 2]]
    method = {**FULL, "batch_size": 4, "ala_epochs": 3}
    loop, stacked = (Watched(method, TINY, NET, 3, engine=e, schedule=who) for e in ENGINES)
    for one, other in zip(loop.rounds, stacked.rounds, strict=True):
        assert (one.samples, one.steps) == (other.samples, other.steps)
