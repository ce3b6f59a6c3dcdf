"""L2C: mixing weights learned as autograd learns them, rounds in plain PyTorch, reductions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from idiolect import methods
from idiolect.errors import UserError
from tests.conftest import ENGINES
from tests.methods.plain import (
    CLIENTS,
    NET,
    START,
    TINY,
    Client,
    assert_same,
    combine,
    federate,
    minus,
    sgd,
)
from tests.watched import Watched

FULL = {"name": "l2c", "lr": 0.2, "batch_size": "full", "epochs": 2, "val_share": 0.0}


def slope(alpha: torch.Tensor, base, updates, client: Client) -> torch.Tensor:
    """d loss(base + sum_j softmax(alpha)_j Delta_j) / d alpha by autograd."""
    alpha = alpha.clone().requires_grad_(True)
    w = torch.softmax(alpha, 0)
    theta = {n: base[n] + sum(w[j] * d[n] for j, d in enumerate(updates)) for n in base}
    value = F.cross_entropy(functional_call(NET, theta, (client.x,)), client.y)
    (g,) = torch.autograd.grad(value, alpha)
    return g


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("steps", [1, 3])
def test_rounds(engine: str, steps: int) -> None:
    ran = Watched({"alpha_lr": 0.3, "alpha_steps": steps, **FULL}, TINY, NET, 3, engine=engine)
    base, updates = [dict(START)] * 4, None
    alpha = [torch.nn.Parameter(torch.zeros(4, dtype=torch.float64)) for _ in CLIENTS]
    for t in range(3):
        for i, c in enumerate(CLIENTS):
            if updates is None:
                continue
            adam = torch.optim.Adam([alpha[i]], lr=0.3)  # a new one every round
            for _ in range(steps):
                alpha[i].grad = slope(alpha[i].detach(), base[i], updates, c)
                adam.step()
        if updates is not None:
            w = [torch.softmax(a.detach(), 0) for a in alpha]
            base = [combine([1, *w[i]], [base[i], *updates]) for i in range(4)]
            assert torch.allclose(ran.logs(t)["aggregation_weight"], torch.stack(w), atol=1e-9)
        rows = [[torch.arange(len(c))] * 2 for c in CLIENTS]
        own = [sgd(base[i], c, rows[i], lr=0.2) for i, c in enumerate(CLIENTS)]
        updates = [minus(own[i], base[i]) for i in range(4)]
        assert torch.allclose(ran.logs(t)["alpha"], torch.stack(list(alpha)), atol=1e-9)
        for i in range(4):
            assert_same(ran.personal[t][i], own[i], 1e-9, what=f"{t} {i}")
            assert_same(ran.up(t, "update", i), updates[i], 1e-9)
    assert float(torch.stack(list(alpha)).detach().std()) > 0.1


def test_is_fedavg_with_uniform_weights() -> None:
    ran = Watched({"alpha_lr": 0.0, **FULL}, TINY, NET, 3)
    same = {k: v for k, v in FULL.items() if k not in ("name", "val_share")}
    fedavg = Watched({"name": "fedavg", "weighting": "uniform", **same}, TINY, NET, 3)
    for t in range(3):
        for i in range(4):
            assert_same(ran.personal[t][i], fedavg.up(t, "model", i), 1e-14)


@pytest.mark.parametrize("schedule", [None, [[0, 1], [2, 3], [0, 3]]])
def test_is_local_when_nobody_else_counts(schedule: list | None) -> None:
    """Also when a client comes back after rounds away: its own last update is not lost."""
    same = {k: v for k, v in FULL.items() if k not in ("name", "val_share")}
    ran = Watched({"alpha_lr": 0.0, "alpha_self": 1e4, **FULL}, TINY, NET, 3, schedule=schedule)
    local = Watched({"name": "local", **same}, TINY, NET, 3, schedule=schedule)
    for i in range(4):
        assert_same(ran.personal[-1][i], local.personal[-1][i], 1e-14)


def test_only_the_last_rounds_updates_are_mixed() -> None:
    schedule = [[0, 1], [2, 3], [0, 3]]
    ran = Watched({"alpha_lr": 0.0, **FULL}, TINY, NET, 3, schedule=schedule)
    mine, others = ran.up(0, "update", 0), [ran.up(1, "update", k) for k in (0, 1)]
    expected = combine([1, 1 / 3, 1 / 3, 1 / 3], [START, mine, *others])
    assert_same(ran.mine[3][0]["base"], expected, 1e-14)


def test_finds_its_like() -> None:
    """Clients 0 and 2 label one way, 1 and 3 another: weights gather within the pairs."""
    generator = torch.Generator().manual_seed(0)
    clients = []
    for i in range(4):
        x = torch.randn(60, 3, generator=generator, dtype=torch.float64)
        y = (x[:, 0] > 0).long()
        clients.append(Client(x, 1 - y if i % 2 else y))
    method = {"name": "l2c", "lr": 0.3, "batch_size": 20, "alpha_lr": 0.5, "val_share": 0.3}
    ran = Watched(method, federate(clients), NET, 6)
    w = torch.softmax(ran.logs(5)["alpha"], 1)
    for i in range(4):
        like, unlike = w[i, (i + 2) % 4], w[i, [(i + 1) % 4, (i + 3) % 4]]
        assert float(like) > 2 * float(unlike.max())


def test_traffic() -> None:
    ran = Watched(FULL, TINY, NET, 1)
    size, n = 8 * sum(v.numel() for v in START.values()), 4
    assert ran.rounds[0].bytes_down == n * (n * size + 8 * n + 2 * n)  # alpha, and two marks each
    assert ran.rounds[0].bytes_up == n * (size + 8 * n)


@pytest.mark.parametrize("bad", [{"alpha_lr": -1.0}, {"alpha_steps": -1}, {"val_share": 1.0}])
def test_settings_are_checked(bad: dict) -> None:
    with pytest.raises(UserError):
        methods.build({"name": "l2c", **bad})
