"""CD2-pFed: private channels that never travel; the same decoupling for FedAS."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from idiolect import methods
from idiolect.core import tree
from idiolect.core.net import Net
from idiolect.errors import UserError
from tests.conftest import ENGINES, SmallNet, ragged_federation, run
from tests.methods.plain import (
    CLIENTS,
    NET,
    START,
    TINY,
    Client,
    NormNet,
    State,
    assert_same,
    differ,
    model_with,
    seeded,
    share,
)
from tests.watched import Watched

STEP = {"lr": 0.2, "batch_size": 4}
NOW = {"name": "cd2_pfed", "growth_rounds": 0, **STEP}
HALVES = {  # what is shared of TinyNet at 0.5
    "body.0.weight": (2, 3),
    "body.0.bias": (2,),
    "body.2.weight": (2, 4),
    "body.2.bias": (2,),
    "head.weight": (3, 2),
    "head.bias": (3,),
}


def shapes(params: State, lead: int = 0) -> dict[str, tuple[int, ...]]:
    return {n: tuple(x.shape[lead:]) for n, x in params.items()}


# --- the decoupling ---


def test_shared_channels() -> None:
    net = Net(NET)
    half = net.shared(START, "channels:0.5")
    assert shapes(half) == HALVES
    assert_same(half, {n: START[n][tuple(map(slice, s))] for n, s in HALVES.items()}, tol=0.0)
    stacked = net.shared(tree.expand(START, 5), "channels:0.5")
    assert shapes(stacked, 1) == HALVES
    assert shapes(net.shared(START, "channels:0")) == shapes(START)
    assert net.shared(START, "channels:1") == {}
    assert set(net.shared(START, "head")) == set(net.body)


def test_shared_channels_of_norm_layers_and_convolutions() -> None:
    net = Net(seeded(SmallNet))
    start = {n: x for n, x in net.module.state_dict().items() if n in net.names}
    part = shapes(net.shared(start, "channels:0.25"))
    assert part["body.0.weight"] == (3, 1, 3, 3)
    assert part["body.3.weight"] == (6, 4, 3, 3)
    assert part["head.weight"] == (5, 18)
    norm = Net(seeded(NormNet))
    stats = {n: x for n, x in norm.module.state_dict().items() if n in norm.names}
    assert shapes(norm.shared(stats, "channels:0.5"))["body.1.running_var"] == (2,)


@pytest.mark.parametrize("spec", ["channels:1.5", "channels:-0.1", "channels:half", "channels:"])
def test_a_bad_share_is_refused(spec: str) -> None:
    with pytest.raises(UserError, match="between 0 and 1"):
        Net(NET).shared(START, spec)


def test_overlay_undoes_crop() -> None:
    other = {n: x + 1 for n, x in START.items()}
    half = Net(NET).shared(START, "channels:0.5")
    both = tree.overlay(half, other)
    assert_same(tree.crop(both, half), half, tol=0.0)
    assert_same({"w": both["body.0.weight"][2:]}, {"w": other["body.0.weight"][2:]}, tol=0.0)
    assert_same({"w": both["head.weight"][:, 2:]}, {"w": other["head.weight"][:, 2:]}, tol=0.0)


# --- the method ---


@pytest.mark.parametrize(("personal", "parent"), [(0.0, "fedavg"), (1.0, "local")])
@pytest.mark.parametrize("kind", ["tiny", "norm"])
def test_reductions(personal: float, parent: str, kind: str) -> None:
    net = NET if kind == "tiny" else seeded(NormNet)
    ours = run(methods.build(NOW | {"personal_share": personal}), TINY, net)
    theirs = run(methods.build({"name": parent, **STEP}), TINY, net)
    for i in range(len(CLIENTS)):
        assert_same(ours.personal_model(i), theirs.personal_model(i), tol=0.0)


def test_private_channels_never_travel() -> None:
    ran = Watched(NOW, TINY, NET, 2, schedule=[[0, 1, 2, 3], [0, 2]])
    assert shapes(ran.fits[1].up["model"], 1) == HALVES == shapes(ran.downs[1]["model"], 1)
    numbers = 8 * sum(int(torch.tensor(s).prod()) for s in HALVES.values())
    assert ran.rounds[1].bytes_up == ran.rounds[1].bytes_down == 2 * numbers
    for i in range(4):  # shared channels are the server's, private ones the client's own
        own, tested = ran.mine[2][i]["model"], ran.personal[1][i]
        part = Net(NET).shared(ran.server[1]["model"], "channels:0.5")
        assert_same(tested, tree.overlay(part, own), tol=0.0)
    assert_same(ran.mine[2][1]["model"], ran.mine[1][1]["model"], tol=0.0)
    first, second = (ran.personal[1][i]["body.0.weight"][2:] for i in (0, 2))
    assert float((first - second).abs().max()) > 1e-3
    assert torch.equal(ran.server[1]["model"]["body.0.weight"][2:], START["body.0.weight"][2:])


def step(state: State, client: Client, lam: float) -> State:
    """One full-batch step on cross-entropy and the divergence of the two sub-networks."""
    leaf = {n: x.clone().requires_grad_() for n, x in state.items()}

    def forward(rows: slice) -> torch.Tensor:
        """The network of some of the four channels of each layer."""
        z = torch.tanh(F.linear(client.x, leaf["body.0.weight"][rows], leaf["body.0.bias"][rows]))
        w = leaf["body.2.weight"][rows, rows]
        z = torch.tanh(F.linear(z, w, leaf["body.2.bias"][rows]))
        return F.linear(z, leaf["head.weight"][:, rows], leaf["head.bias"])

    s, p = (F.log_softmax(forward(rows), 1) for rows in (slice(0, 2), slice(2, 4)))
    both = (F.kl_div(s, p, log_target=True, reduction="batchmean")) + (
        F.kl_div(p, s, log_target=True, reduction="batchmean")
    )
    loss = F.cross_entropy(forward(slice(0, 4)), client.y) + lam * both / 2
    grads = torch.autograd.grad(loss, list(leaf.values()))
    return {n: (leaf[n] - 0.2 * g).detach() for n, g in zip(leaf, grads, strict=True)}


@pytest.mark.parametrize("engine", ENGINES)
def test_cyclic_distillation_by_hand(engine: str) -> None:
    spec = NOW | {"batch_size": "full", "distill": 0.8}
    ran = Watched(spec, TINY, NET, 2, engine=engine)
    models, net = [dict(START) for _ in CLIENTS], Net(NET)
    for t in range(2):
        models = [step(m, c, 0.8) for m, c in zip(models, CLIENTS, strict=True)]
        stacked = net.shared(tree.pile(models), "channels:0.5")
        part = tree.mix(torch.tensor(share(CLIENTS), dtype=torch.float64), stacked)
        models = [tree.overlay(part, m) for m in models]
        for i, model in enumerate(models):
            assert_same(ran.personal[t][i], model, what=f"client {i} round {t}")
    plain = run(methods.build(spec | {"distill": 0.0}), TINY, NET, 2)
    assert differ(plain.personal_model(0), models[0])


def test_statistics_are_those_of_the_whole_network() -> None:
    """The sub-networks' passes must not count."""
    spec = NOW | {"batch_size": "full", "lr": 1e-12}
    net = seeded(NormNet)
    distilled = Watched(spec | {"distill": 1.0}, TINY, net, 1)
    plain = Watched(spec | {"distill": 0.0}, TINY, net, 1)
    for n in ("body.1.running_mean", "body.1.running_var"):
        assert_same({n: distilled.fits[0].mine["model"][n]}, {n: plain.fits[0].mine["model"][n]})


def test_the_private_share_grows_from_0() -> None:
    ran = Watched({"name": "cd2_pfed", "growth_rounds": 2, **STEP}, TINY, NET, 4)
    rows = [fit.up["model"]["body.0.weight"].shape[1] for fit in ran.fits]
    assert rows == [4, 3, 2, 2]  # of 4 channels: 0, 0.25, 0.5, 0.5 of them private
    fedavg = Watched({"name": "fedavg", **STEP}, TINY, NET, 1)
    assert_same(ran.fits[0].up["model"], fedavg.fits[0].up["model"], tol=0.0)


def test_smoothing_of_private_weights() -> None:
    ran = Watched(NOW | {"average": 0.25, "distill": 0.0}, TINY, NET, 1)
    plain = Watched(NOW | {"distill": 0.0}, TINY, NET, 1)
    n = "body.0.weight"
    new, start = plain.fits[0].mine["model"][n], START[n]
    expected = 0.25 * new[:, 2:] + 0.75 * start[2:]
    assert_same({n: ran.fits[0].mine["model"][n][:, 2:]}, {n: expected}, tol=1e-15)
    assert torch.equal(ran.fits[0].up["model"][n], plain.fits[0].up["model"][n])


def test_export_is_a_plain_module() -> None:
    sim = run(methods.build(NOW), TINY, NET, 2)
    assert model_with(sim.personal_model(1))(CLIENTS[1].x).shape == (len(CLIENTS[1]), 3)


def test_settings() -> None:
    for wrong in ({"personal_share": 1.2}, {"average": 0.0}, {"growth_rounds": -1}):
        with pytest.raises(UserError, match="method"):
            methods.build({"name": "cd2_pfed", **wrong})


# --- as decoupling of FedAS ---


@pytest.mark.parametrize("engine", ENGINES)
def test_fedas_by_channels(engine: str) -> None:
    spec = {"name": "fedas", "personal_layers": "channels:0.5", "lr": 0.1}
    ran = Watched(spec, ragged_federation(), seeded(SmallNet), 2, engine=engine)
    other = Watched(spec, ragged_federation(), seeded(SmallNet), 2, engine="loop")
    assert tuple(ran.fits[1].up["base"]["body.0.weight"].shape) == (5, 2, 1, 3, 3)
    assert tuple(ran.fits[1].up["base"]["head.weight"].shape) == (5, 5, 12)
    for i in range(5):
        assert_same(ran.personal[1][i], other.personal[1][i], tol=1e-9)


def test_fedas_aligns_shared_channels_only() -> None:
    """With no training steps to speak of, private channels are as the client left them."""
    spec = {"name": "fedas", "personal_layers": "channels:0.5", "align_lr": 0.5, "lr": 1e-13}
    ran = Watched(spec, TINY, NET, 2)
    for i in range(4):
        before, after = ran.mine[1][i]["model"], ran.mine[2][i]["model"]
        assert_same(
            {"w": after["body.0.weight"][2:]}, {"w": before["body.0.weight"][2:]}, tol=1e-11
        )
        assert differ({"w": after["body.0.weight"][:2]}, {"w": before["body.0.weight"][:2]})


def test_fedas_with_no_private_channels_shares_everything() -> None:
    for spec, same in (("channels:0", "none"), ("channels:1", "all")):
        ours, theirs = (
            run(methods.build({"name": "fedas", "personal_layers": s}), TINY, NET, 2)
            for s in (spec, same)
        )
        assert_same(ours.personal_model(0), theirs.personal_model(0), tol=0.0)


def test_a_head_of_several_layers_is_shared_whole() -> None:
    model = nn.Sequential()
    model.body = nn.Linear(3, 4)
    model.head = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    net = Net(model)
    start = dict(model.state_dict())
    part = shapes(net.shared(start, "channels:0.5"))
    assert part["body.weight"] == (2, 3)
    assert part["head.0.weight"] == (4, 4)
    assert part["head.2.weight"] == (3, 4)


@pytest.mark.parametrize("engine", ENGINES)
def test_alignment_is_that_of_fedas(engine: str) -> None:
    """FedAS's Figure 6b. Without distillation the two methods send and average the same."""
    same = {**STEP, "order": "fixed", "align": True, "align_lr": 0.3, "epochs": 1}
    ours = Watched({**NOW, **same, "distill": 0.0}, TINY, NET, 3, engine=engine)
    fedas = {"name": "fedas", "synchronize": False, "personal_layers": "channels:0.5"}
    theirs = Watched({**fedas, **same}, TINY, NET, 3, engine=engine)
    without = Watched({**NOW, **same, "distill": 0.0, "align": False}, TINY, NET, 3, engine=engine)
    for t in range(3):
        for i in range(4):
            assert_same(ours.up(t, "model", i), theirs.up(t, "base", i), 1e-12)
            assert differ(ours.up(t, "model", i), without.up(t, "model", i))
