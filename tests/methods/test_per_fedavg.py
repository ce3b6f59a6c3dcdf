"""Per-FedAvg: all forms against automatic differentiation in plain PyTorch, and adaptation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from idiolect import methods
from idiolect.errors import UserError
from tests.conftest import ENGINES, SmallNet, run
from tests.methods.plain import (
    CLIENTS,
    NET,
    START,
    TINY,
    Client,
    State,
    assert_same,
    combine,
    differ,
    draw_clients,
    federate,
    gradient,
    sgd,
    share,
)
from tests.watched import Watched

ALPHA, BETA = 0.3, 0.2
LARGE = draw_clients((12, 18, 7, 24))


def loss_at(params: list[Tensor], client: Client, rows: Tensor) -> Tensor:
    out = functional_call(NET, dict(zip(START, params, strict=True)), (client.x[rows],))
    return F.cross_entropy(out, client.y[rows])


def meta_gradient(state: State, client: Client, parts: list[Tensor]) -> list[Tensor]:
    """(I - alpha H(w; D'')) grad f(w - alpha grad f(w; D); D'), H spelled out row by row."""
    w = [v.clone().requires_grad_() for v in state.values()]
    inner = torch.autograd.grad(loss_at(w, client, parts[0]), w)
    moved = [(v - ALPHA * g).detach().requires_grad_() for v, g in zip(w, inner, strict=True)]
    u = torch.autograd.grad(loss_at(moved, client, parts[1]), moved)
    if len(parts) == 2:
        return list(u)
    flat_u = torch.cat([g.flatten() for g in u])
    slope = torch.autograd.grad(loss_at(w, client, parts[2]), w, create_graph=True)
    flat = torch.cat([g.flatten() for g in slope])
    rows = [torch.autograd.grad(x, w, retain_graph=True, allow_unused=True) for x in flat]
    bent = []
    for row in rows:
        h = torch.cat(
            [
                torch.zeros(v.numel()) if g is None else g.flatten()
                for g, v in zip(row, w, strict=True)
            ]
        )
        bent.append(h @ flat_u)
    step = flat_u - ALPHA * torch.stack(bent)
    return [s.reshape(v.shape) for s, v in zip(step.split([v.numel() for v in w]), w, strict=True)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", ["first_order", "hessian_free", "exact"])
def test_a_round_by_hand(engine: str, form: str) -> None:
    """Mini-batches of 4 taken two or three at a time; the last ones of a client are cut evenly."""
    count = 2 if form == "first_order" else 3
    method = {
        "name": "per_fedavg",
        "form": form,
        "alpha": ALPHA,
        "lr": BETA,
        "batch_size": 4,
        "order": "fixed",
        "delta": 1e-4,
    }
    ran = Watched(method, federate(LARGE), NET, 1, engine=engine)
    sent = []
    for i, c in enumerate(LARGE):
        w = START
        for rows in torch.arange(len(c)).split(4 * count):
            small = len(rows) < 2 * count
            parts = [rows] * count if small else list(rows.tensor_split(count))
            step = meta_gradient(w, c, parts)
            w = {n: v - BETA * g for (n, v), g in zip(w.items(), step, strict=True)}
        tol = 1e-8 if form == "hessian_free" else 1e-12
        assert_same(ran.up(0, "model", i), w, tol=tol, what=f"{form} {i}")
        sent.append(w)
    assert_same(ran.server[0]["model"], combine(share(LARGE), sent), tol=1e-8)


def test_hessian_free_approaches_exact() -> None:
    """Central differences: a ten times smaller delta, a hundred times smaller gap."""
    settings = {"name": "per_fedavg", "alpha": ALPHA, "lr": BETA, "batch_size": "full"}
    clients = federate(LARGE)
    exact = run(methods.build({**settings, "form": "exact"}), clients, NET, 1).server["model"]
    gaps = []
    for delta in (0.1, 0.01):
        method = methods.build({**settings, "form": "hessian_free", "delta": delta})
        near = run(method, clients, NET, 1).server["model"]
        gaps.append(max(float((near[n] - exact[n]).abs().max()) for n in exact))
    assert gaps[0] / gaps[1] == pytest.approx(100, rel=0.1)
    first = run(methods.build(settings), clients, NET, 1).server["model"]
    assert differ(first, exact, by=1e-4)


@pytest.mark.parametrize("form", ["first_order", "hessian_free", "exact"])
def test_alpha_zero_is_fedavg_on_the_second_part(form: str) -> None:
    """No inner step, nothing to bend: SGD on D'; for tiny clients D' is all their data."""
    small = federate(draw_clients((3, 2, 3, 1) if form == "first_order" else (4, 5, 3, 5)))
    settings = {"lr": BETA, "batch_size": "full"}
    ours = run(
        methods.build({"name": "per_fedavg", "form": form, "alpha": 0.0, **settings}), small, NET
    )
    theirs = run(methods.build({"name": "fedavg", **settings}), small, NET)
    assert_same(ours.server["model"], theirs.server["model"], tol=1e-13)


def test_a_client_smaller_than_one_batch_still_trains() -> None:
    """PFLlib drops the last partial double batch: such a client trains nothing and is averaged."""
    for drop_last in (False, True):
        method = {"name": "per_fedavg", "lr": BETA, "batch_size": 16, "drop_last": drop_last}
        ran = Watched(method, federate(draw_clients((1, 20, 3))), NET, 1)
        for i in range(3):
            assert differ(ran.up(0, "model", i), START, by=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", ["first_order", "hessian_free", "exact"])
def test_with_batch_norm(engine: str, form: str, ragged) -> None:
    """Statistics are updated once a step, by the pass over D'."""
    method = {"name": "per_fedavg", "form": form, "lr": 0.05, "alpha": 0.05, "batch_size": "full"}
    net = SmallNet(norm=True)
    ran = Watched(method, ragged, net, 1, engine=engine)
    start = ran.sim.start_tree
    rows = ragged.train[3].tensor_split(2 if form == "first_order" else 3)[1]
    layer = net.body[0].double()
    with torch.no_grad():
        mean = layer(ragged.x[rows].double()).mean((0, 2, 3))
    got = ran.up(0, "model", 3)["body.1.running_mean"]
    assert (got - 0.1 * mean).abs().max() < 0.02 * mean.abs().max()
    assert differ(ran.up(0, "model", 3), start)


# --- adaptation ---


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_tested_after_steps_of_alpha(engine: str, steps: int) -> None:
    method = {
        "name": "per_fedavg",
        "alpha": ALPHA,
        "lr": BETA,
        "batch_size": "full",
        "adapt_steps": steps,
        "weight_decay": 0.1,
        "momentum": 0.9,
    }
    ran = Watched(method, TINY, NET, 2, engine=engine)
    for i, c in enumerate(CLIENTS):
        expected = ran.server[1]["model"]
        for _ in range(steps):
            expected = {n: expected[n] - ALPHA * g for n, g in gradient(expected, c).items()}
        assert_same(ran.personal[1][i], expected)


def test_the_server_keeps_the_unadapted_model() -> None:
    ran = Watched({"name": "per_fedavg", "alpha": ALPHA, "lr": BETA}, TINY, NET, 2)
    again = Watched(
        {"name": "per_fedavg", "alpha": ALPHA, "lr": BETA, "adapt_steps": 0}, TINY, NET, 2
    )
    assert_same(ran.server[1]["model"], again.server[1]["model"], tol=0)
    assert_same(again.personal[1][0], again.server[1]["model"], tol=0)


# --- SPFL's variant ---


@pytest.mark.parametrize("engine", ENGINES)
def test_two_step_is_fedavg_with_two_steps_per_batch(engine: str) -> None:
    method = {
        "name": "per_fedavg",
        "form": "two_step",
        "adapt_steps": 0,
        "lr": 0.2,
        "batch_size": "full",
        "weighting": "uniform",
        "weight_decay": 0.01,
    }
    ran = Watched(method, TINY, NET, 2, engine=engine)
    w = START
    for t in range(2):
        w = combine([0.25] * 4, [sgd(w, c, lr=0.2, repeat=2, decay=0.01) for c in CLIENTS])
        assert_same(ran.server[t]["model"], w)
        assert_same(ran.personal[t][0], w)


def test_bad_values_are_refused() -> None:
    for bad in ({"delta": 0.0}, {"alpha": -1.0}, {"adapt_steps": -1}, {"form": "second"}):
        with pytest.raises(UserError, match=r"must|unknown"):
            methods.build({"name": "per_fedavg", **bad})
