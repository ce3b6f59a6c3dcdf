"""FedAMP: attention in closed form, rounds in plain PyTorch, reductions, and two known bugs."""

from __future__ import annotations

from math import exp

import pytest
import torch
import torch.nn.functional as F

from idiolect import methods
from idiolect.errors import UserError
from idiolect.methods.fedamp import FedAMP
from tests.conftest import ENGINES, rows
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
    minus,
    model_with,
    vector,
)
from tests.watched import Watched

FULL = {"lr": 0.2, "batch_size": "full", "epochs": 2}


def points(*at: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(at, dtype=torch.float64)[:, None]}


def test_attention() -> None:
    """d = 1, 4, 9 between 0, 1 and 3; A' = exp(-d / sigma) / sigma."""
    xi = FedAMP(sigma=2.0, alpha=0.5).attention(points(0, 1, 3))
    a, b, c = (0.25 * exp(-d / 2) for d in (1, 4, 9))
    expected = [[1 - a - c, a, c], [a, 1 - a - b, b], [c, b, 1 - b - c]]
    assert torch.allclose(xi, torch.tensor(expected, dtype=xi.dtype), atol=1e-15)


def test_own_weight_is_never_negative() -> None:
    """Twenty equal models: the formula would give 1 - 19 A'(0) = -18."""
    xi = FedAMP().attention(points(*[0.0] * 20))
    assert float(xi.min()) >= 0
    assert torch.allclose(xi.sum(1), torch.ones(20, dtype=xi.dtype))
    assert xi.diagonal().tolist() == [0.0] * 20
    off = xi[0, 1:]
    assert off.tolist() == pytest.approx([1 / 19] * 19)


def test_heuristic_attention() -> None:
    w = {"w": torch.tensor([[1.0, 0], [1, 0], [0, 1]], dtype=torch.float64)}
    xi = FedAMP(weights="heuristic", sigma=2.0, self_weight=0.4).attention(w)
    near = 0.6 * exp(2) / (exp(2) + 1)
    assert xi[0].tolist() == pytest.approx([0.4, near, 0.6 - near])
    assert xi[2].tolist() == pytest.approx([0.3, 0.3, 0.4])


def pulled(w: State, client: Client, cloud: State, strength: float) -> State:
    """Two full-batch steps on F + strength / 2 |w - cloud|^2."""
    for _ in range(2):
        model = model_with(w)
        value = F.cross_entropy(model(client.x), client.y)
        for n, p in model.named_parameters():
            value = value + strength / 2 * (p - cloud[n]).square().sum()
        value.backward()
        w = {n: p.detach() - 0.2 * p.grad for n, p in model.named_parameters()}
    return w


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("start", ["own", "cloud"])
def test_rounds(engine: str, start: str) -> None:
    settings = {"sigma": 3.0, "alpha": 0.8, "lam": 0.4, "start": start}
    ran = Watched({"name": "fedamp", **settings, **FULL}, TINY, NET, 3, engine=engine)
    own, cloud = [dict(START)] * 4, [dict(START)] * 4
    for t in range(3):
        first = own if start == "own" else cloud
        own = [pulled(first[i], c, cloud[i], 0.5) for i, c in enumerate(CLIENTS)]
        xi = torch.zeros(4, 4, dtype=torch.float64)
        for i in range(4):
            for j in range(4):
                if i != j:
                    d = float(vector(minus(own[i], own[j])).square().sum())
                    xi[i, j] = 0.8 * exp(-d / 3) / 3
            assert float(xi[i].sum()) < 1
            xi[i, i] = 1 - xi[i].sum()
        cloud = [combine(xi[i], own) for i in range(4)]
        assert torch.allclose(ran.logs(t)["aggregation_weight"], xi, atol=1e-12)
        for i in range(4):
            assert_same(ran.personal[t][i], own[i], what=f"own {t} {i}")
    for i in range(4):
        assert_same(rows(ran.sim.server["clouds"])[i], cloud[i], what=f"cloud {i}")


def test_lambda_changes_the_result() -> None:
    """A penalty without gradient would be Local for any lambda."""
    ran = [
        Watched({"name": "fedamp", "lam": lam, **FULL}, TINY, NET, 2).personal[-1]
        for lam in (0.0, 0.1, 1.0)
    ]
    for i in range(4):
        assert differ(ran[0][i], ran[1][i]) and differ(ran[1][i], ran[2][i])


@pytest.mark.parametrize("settings", [{}, {"start": "cloud", "weights": "identity"}])
def test_is_local_without_collaboration(settings: dict) -> None:
    ran = Watched({"name": "fedamp", "lam": 0.0, **settings, **FULL}, TINY, NET, 3)
    local = Watched({"name": "local", **FULL}, TINY, NET, 3)
    for i in range(4):
        assert_same(ran.personal[-1][i], local.personal[-1][i], 0)


def test_is_fedavg_with_uniform_weights() -> None:
    settings = {"weights": "uniform", "start": "cloud", "lam": 0.0, **FULL}
    ran = Watched({"name": "fedamp", **settings}, TINY, NET, 3)
    fedavg = Watched({"name": "fedavg", "weighting": "uniform", **FULL}, TINY, NET, 3)
    for t in range(3):
        for i in range(4):
            assert_same(ran.up(t, "model", i), fedavg.up(t, "model", i), 1e-14)


def test_absent_clients_keep_their_cloud() -> None:
    schedule = [[0, 1, 2, 3], [1, 3]]
    ran = Watched({"name": "fedamp", **FULL}, TINY, NET, 2, schedule=schedule)
    both = Watched({"name": "fedamp", **FULL}, TINY, NET, 1)
    now, before = ran.sim.server["clouds"], both.sim.server["clouds"]
    assert_same(rows(now)[0], rows(before)[0], 0)
    assert differ(rows(now)[1], rows(before)[1])
    own = [ran.up(1, "model", k) for k in (0, 1)]
    xi = ran.shown(1, "aggregation_weight")
    assert_same(rows(now)[3], combine(xi[1], own))


@pytest.mark.parametrize("bad", [{"sigma": 0.0}, {"alpha": 0.0}, {"lam": -1.0}, {"self_weight": 2}])
def test_settings_are_checked(bad: dict) -> None:
    with pytest.raises(UserError):
        methods.build({"name": "fedamp", **bad})
