"""FedPAC: aligned features, combined heads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import nnls
from torch import Tensor, nn

from idiolect import methods
from idiolect.core import tree
from idiolect.core.method import Server, Ups
from idiolect.core.net import Net
from idiolect.methods.shared import simplex as simplexes
from idiolect.methods.shared.simplex import combination, simplex
from tests.conftest import ENGINES, run
from tests.methods.plain import (
    BODY,
    CLASSES,
    CLIENTS,
    HEAD,
    NET,
    START,
    TINY,
    Client,
    State,
    assert_same,
    combine,
    differ,
    features,
    model_with,
    sgd,
    share,
)
from tests.watched import Watched

FULL = {"lr": 0.2, "batch_size": "full", "momentum": 0.0, "weight_decay": 0.0, "epochs": 1}
SPEC = {"name": "fedpac", "head_lr": 0.3, "lam": 0.7, **FULL}


# --- the weights of the heads ---


def test_equal_clients_weigh_by_inverse_variance() -> None:
    v = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    alpha = combination(v, torch.ones(3, 2, 5, dtype=torch.float64))
    expected = torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64) / 7
    assert torch.allclose(alpha, expected.expand(3, 3), atol=1e-12)


def test_without_variance_every_client_keeps_its_own_head() -> None:
    h = torch.randn(5, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    alpha = combination(torch.zeros(5, dtype=torch.float64), h)
    assert torch.allclose(alpha, torch.eye(5, dtype=torch.float64), atol=1e-6)


def test_two_clients_in_closed_form() -> None:
    """min a^2 v1 + (1 - a)^2 (v2 + D^2) for client 1, and the mirror image for client 2."""
    v1, v2, gap = 0.3, 0.5, 0.4
    h = torch.tensor([[[0.0]], [[gap]]], dtype=torch.float64)
    alpha = combination(torch.tensor([v1, v2], dtype=torch.float64), h)
    total = v1 + v2 + gap**2
    rows = [[(v2 + gap**2) / total, v1 / total], [v2 / total, (v1 + gap**2) / total]]
    assert torch.allclose(alpha, torch.tensor(rows, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("spread", [0.001, 0.01, 1.0, 30.0])
@pytest.mark.parametrize("together", [simplexes.TOGETHER, 5 * 12**2])
def test_against_non_negative_least_squares(
    spread: float, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """min |A x|^2 on the simplex is the direction of min |A x|^2 + (sum x - 1)^2 over x >= 0. With
    variances this far apart steps of the gradient alone need thousands."""
    monkeypatch.setattr(simplexes, "TOGETHER", together)
    generator = torch.Generator().manual_seed(1)
    v = 10 ** (-4 * torch.rand(12, dtype=torch.float64, generator=generator))
    h = spread * torch.randn(12, 3, 4, dtype=torch.float64, generator=generator)
    alpha = combination(v, h, most=256)
    for i in range(12):
        gaps = (h[i] - h).flatten(1).T.numpy()
        a = np.vstack([np.diag(v.sqrt().numpy()), gaps, np.ones(12)])
        x, _ = nnls(a, np.r_[np.zeros(len(a) - 1), 1.0])
        assert np.abs(alpha[i].numpy() - x / x.sum()).max() < 1e-9


def test_what_is_no_number_stays_so() -> None:
    h = torch.ones(4, 2, 3)
    h[1, 0, 0] = torch.nan
    assert combination(torch.ones(4), h).isnan().all()


def test_simplex() -> None:
    z = torch.tensor([[0.2, 0.3, 0.5], [2.0, 0.0, 0.0], [1.0, 0.8, -3.0], [5.0, 5.0, 5.0]]).double()
    expected = [[0.2, 0.3, 0.5], [1, 0, 0], [0.6, 0.4, 0], [1 / 3] * 3]
    assert torch.allclose(simplex(z), torch.tensor(expected).double(), atol=1e-7)


# --- a round ---


def statistics(state: State, client: Client) -> tuple[Tensor, Tensor, float]:
    """Class means, h and v from their definitions, one sample at a time."""
    f, n = features(state, client), len(client)
    means, h, v = torch.zeros(CLASSES, 4).double(), torch.zeros(CLASSES, 4).double(), 0.0
    for c in range(CLASSES):
        mine = f[client.y == c]
        if len(mine):
            p = len(mine) / n
            means[c], h[c] = mine.mean(0), p * mine.mean(0)
            v += p * float((mine.T @ mine / len(mine)).trace()) - p**2 * float(means[c] @ means[c])
    return means, h, v / n


def body_step(state: State, client: Client, target: Tensor, lam: float) -> State:
    model = model_with(state)
    f = model.body(client.x)
    loss = F.cross_entropy(model.head(f), client.y) + lam * F.mse_loss(f, target[client.y])
    loss.backward()
    moved = {n: (p - 0.2 * p.grad).detach() for n, p in model.named_parameters()}
    return state | {n: moved[n] for n in BODY}


@pytest.mark.parametrize("engine", ENGINES)
def test_two_rounds_by_hand(engine: str) -> None:
    ran = Watched(SPEC, TINY, NET, 2, engine=engine)
    base, heads = {n: START[n] for n in BODY}, [{n: START[n] for n in HEAD} for _ in CLIENTS]
    centroids: Tensor | None = None
    for t in range(2):
        trained, h, v = [], [], []
        for i, client in enumerate(CLIENTS):
            start = base | heads[i]
            means, h_i, v_i = statistics(start, client)
            target, lam = (means, 0.0) if centroids is None else (centroids, 0.7)
            mid = sgd(start, client, lr=0.3, only=HEAD)
            trained.append(body_step(mid, client, target, lam))
            h.append(h_i)
            v.append(v_i)
        base = combine(share(CLIENTS), [{n: m[n] for n in BODY} for m in trained])
        alpha = combination(torch.tensor(v, dtype=torch.float64), torch.stack(h))
        heads = [combine(row, [{n: m[n] for n in HEAD} for m in trained]) for row in alpha]
        after = [statistics(m, c)[0] for m, c in zip(trained, CLIENTS, strict=True)]
        counts = [torch.bincount(c.y, minlength=CLASSES).double()[:, None] for c in CLIENTS]
        weighted = [n * m for n, m in zip(counts, after, strict=True)]
        centroids = torch.stack(weighted).sum(0) / torch.stack(counts).sum(0)
        assert float((ran.logs(t)["head_weight"] - alpha).abs().max()) < 1e-9
        assert float((ran.server[t]["centroids"] - centroids).abs().max()) < 1e-11
        for i, head in enumerate(heads):
            assert_same(ran.personal[t][i], base | head, tol=1e-9, what=f"client {i} round {t}")


def arrivals(ids: list[int]) -> Ups:
    """Made-up messages, each a function of its client's id."""
    up = []
    for i in ids:
        draw = torch.Generator().manual_seed(100 + i)
        leaves = {n: torch.randn(x.shape, generator=draw).double() for n, x in START.items()}
        up.append(
            {
                "base": {n: leaves[n] for n in BODY},
                "head": {n: leaves[n] for n in HEAD},
                "centroids": torch.randn(CLASSES, 4, generator=draw).double(),
                "counts": torch.randint(0, 4, (CLASSES,), generator=draw),
                "h": 0.1 * torch.randn(CLASSES, 4, generator=draw).double(),
                "v": torch.rand((), generator=draw).double(),
            }
        )
    sizes = torch.tensor([10.0 + i for i in ids]).double()
    return Ups(tree.pile(up), ids, sizes, [0] * len(ids), 0)


def served(ids: list[int]) -> Server:
    method, net = methods.build(SPEC), Net(NET)
    state = method.server_init(net, START, range(6))
    server = Server(state, net=net, clients=range(6), sizes={i: 10 + i for i in range(6)})
    ups = arrivals(ids)
    before = tree.each(torch.Tensor.clone, ups.record)
    method.aggregate(server, ups)
    for name, x in tree.leaves(before).items():  # nothing is overwritten while it is averaged
        assert torch.equal(tree.leaves(ups.record)[name], x), name
    return server


def test_weights_reach_the_right_clients_in_any_order() -> None:
    """Elsewhere two orders of the client list are mixed up."""
    ordered, shuffled = served([0, 1, 2, 4, 5]), served([4, 0, 5, 2, 1])
    ups = arrivals([0, 1, 2, 4, 5])
    alpha = combination(ups["v"], ups["h"])
    for k, i in enumerate([0, 1, 2, 4, 5]):
        expected = tree.mix(alpha[k], ups["head"])
        assert_same(tree.client(ordered["heads"][[i]], 0), expected, tol=1e-12)
        assert_same(tree.client(shuffled["heads"][[i]], 0), expected, tol=1e-8)
    assert_same(tree.client(shuffled["heads"][[3]], 0), {n: START[n] for n in HEAD}, tol=0.0)
    assert float((alpha - alpha.mean(0)).abs().max()) > 0.01


def test_without_alignment_and_combination_it_is_fedrep() -> None:
    step = {"lr": 0.2, "batch_size": 4, "momentum": 0.5, "epochs": 2}
    spec = {"name": "fedpac", "lam": 0.0, "combine": False, "head_lr": 0.2, "weight_decay": 0.0}
    ours = run(methods.build(spec | step), TINY, NET)
    theirs = run(methods.build({"name": "fedrep", "head_epochs": 1, **step}), TINY, NET)
    for i in range(len(CLIENTS)):
        assert_same(ours.personal_model(i), theirs.personal_model(i), tol=1e-14)


def test_lambda_and_combination_matter() -> None:
    method = methods.build(SPEC)
    plain = run(method, TINY, NET, 2).personal_model(0)
    assert differ(plain, run(replace(method, lam=0.0), TINY, NET, 2).personal_model(0))  # type: ignore[call-arg]
    assert differ(plain, run(replace(method, combine=False), TINY, NET, 2).personal_model(0))  # type: ignore[call-arg]


def test_one_client_and_a_linear_model() -> None:
    assert combination(torch.zeros(1), torch.ones(1, 2, 3)).tolist() == [[1.0]]
    sim = run(methods.build(SPEC), TINY, nn.Linear(3, 3).double(), 2, schedule=[[0], [0]])
    assert bool(torch.isfinite(sim.personal_model(0)["weight"]).all())


def test_traffic() -> None:
    """The model both ways; class means before and after training up, centroids down."""
    size = 8 * sum(v.numel() for v in START.values())
    (weight,) = (START[n] for n in HEAD if START[n].ndim == 2)
    means, classes = 8 * weight.numel(), len(weight)
    ran = Watched(SPEC, TINY, NET, 1).rounds[0]
    assert ran.bytes_down == 4 * (size + means + classes)  # which centroids are known
    assert ran.bytes_up == 4 * (size + 2 * means + 8 * classes + 8)  # counts and variance
