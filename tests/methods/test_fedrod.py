"""Fed-RoD: two losses, two heads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from idiolect import methods
from idiolect.methods.fedrod import OWN
from idiolect.methods.shared.hypernetwork import generate, unprefixed
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
    federate,
    model_with,
    share,
)
from tests.watched import Watched

FULL = {"lr": 0.2, "batch_size": "full", "epochs": 1}
HYPER = {"name": "fedrod", "head": "hyper", "hidden": 6, **FULL}


def step(state: State, own: State, client: Client) -> tuple[State, State]:
    """One full-batch step of both predictors; classes the client lacks are left out by hand."""
    model = model_with(state)
    phi = {n: x.clone().requires_grad_() for n, x in own.items()}
    z = model.body(client.x)
    generic = model.head(z)
    counts = torch.bincount(client.y, minlength=CLASSES)
    present = counts > 0
    balanced = generic[:, present] + counts[present].double().log()
    at = (present.cumsum(0) - 1)[client.y]
    personal = generic.detach() + F.linear(z.detach(), phi["head.weight"], phi["head.bias"])
    F.cross_entropy(balanced, at).backward()
    F.cross_entropy(personal, client.y).backward()
    new = {n: (p - 0.2 * p.grad).detach() for n, p in model.named_parameters()}
    return new, {n: (p - 0.2 * p.grad).detach() for n, p in phi.items()}


@pytest.mark.parametrize("engine", ENGINES)
def test_two_rounds_by_hand(engine: str) -> None:
    ran = Watched({"name": "fedrod", **FULL}, TINY, NET, 2, engine=engine)
    model = dict(START)
    own = [{n: torch.zeros_like(START[n]) for n in HEAD} for _ in CLIENTS]
    for t in range(2):
        done = [step(model, phi, c) for phi, c in zip(own, CLIENTS, strict=True)]
        model, own = combine(share(CLIENTS), [d[0] for d in done]), [d[1] for d in done]
        for i, phi in enumerate(own):
            folded = model | {n: model[n] + phi[n] for n in HEAD}
            # a missing class counts FLOOR = 1e-8 samples, not 0
            assert_same(ran.personal[t][i], folded, tol=1e-7, what=f"client {i} round {t}")


def test_prediction_is_the_sum_of_both_heads() -> None:
    """Elsewhere the generic head is left out."""
    ran = Watched({"name": "fedrod", **FULL}, TINY, NET, 2)
    generic = ran.sim.server_model()
    for i, client in enumerate(CLIENTS):
        own = {n.removeprefix(OWN): x for n, x in ran.mine[2][i]["head"].items()}
        z = model_with(generic).body(client.x)
        both = model_with(generic).head(z) + F.linear(z, own["head.weight"], own["head.bias"])
        logits = model_with(ran.sim.personal_model(i))(client.x)
        assert float((logits - both).detach().abs().max()) < 1e-12
        assert differ(own, {n: torch.zeros_like(x) for n, x in own.items()})


@pytest.mark.parametrize("head", ["linear", "hyper"])
def test_the_personal_loss_reaches_nothing_but_the_personal_head(head: str) -> None:
    """With plain cross-entropy for the generic head, what is averaged is FedAvg exactly."""
    spec = {"name": "fedrod", "loss": "cross_entropy", "head": head, **FULL}
    ours = run(methods.build(spec), TINY, NET)
    theirs = run(methods.build({"name": "fedavg", **FULL}), TINY, NET)
    assert_same(ours.server_model(), theirs.server_model(), tol=1e-15)


def test_balanced_softmax_with_equal_counts_is_cross_entropy() -> None:
    even = federate([Client(c.x[:6], torch.arange(6) % CLASSES) for c in CLIENTS if len(c) > 5])
    ours = run(methods.build({"name": "fedrod", **FULL}), even, NET)
    theirs = run(methods.build({"name": "fedavg", **FULL}), even, NET)
    assert_same(ours.server_model(), theirs.server_model(), tol=1e-14)


@pytest.mark.parametrize("head", ["linear", "hyper"])
def test_a_missing_class_gives_a_finite_loss(head: str) -> None:
    """Elsewhere log 0 makes it infinite. Every client of this problem lacks one class."""
    spec = {"name": "fedrod", "head": head, **FULL, "lr": 1.0, "epochs": 20}
    ran = Watched(spec, TINY, NET, 2)
    assert all(0 < r.train_loss < 10 for r in ran.rounds)
    assert all(bool(torch.isfinite(x).all()) for x in ran.personal[1][0].values())


@pytest.mark.parametrize("engine", ENGINES)
def test_hypernetwork_by_hand(engine: str) -> None:
    ran = Watched(HYPER, TINY, NET, 3, engine=engine)
    nu = ran.server[2]["hyper"]
    model = ran.sim.server_model()
    for i, client in enumerate(CLIENTS):
        a = torch.bincount(client.y, minlength=CLASSES).double() / len(client)
        hidden = (nu[OWN + "in.weight"] @ a + nu[OWN + "in.bias"]).relu()
        for n in HEAD:
            out = nu[f"{OWN}out.weight.{n}"] @ hidden + nu[f"{OWN}out.bias.{n}"]
            assert_same(ran.personal[2][i], {n: model[n] + out})
        assert_same(ran.personal[2][i], {n: model[n] for n in BODY}, tol=0.0)
    first, second = ran.personal[2][0], ran.personal[2][1]
    assert differ({n: first[n] for n in HEAD}, {n: second[n] for n in HEAD})


def test_generate_for_one_client_and_for_many() -> None:
    method = methods.build(HYPER)
    sim = run(method, TINY, NET, 2)
    nu, a = unprefixed(sim.server["hyper"], OWN), torch.rand(3, CLASSES, dtype=torch.float64)
    many = generate({n: x.expand(3, *x.shape) for n, x in nu.items()}, a)
    for k in range(3):
        assert_same({n: x[k] for n, x in many.items()}, generate(nu, a[k]), tol=1e-15)


def test_what_stays() -> None:
    linear, generated = (Watched(s, TINY, NET, 1) for s in ({"name": "fedrod"}, HYPER))
    assert set(linear.fits[0].up) == {"model"}
    assert set(linear.fits[0].up["model"]) == set(START)
    assert set(generated.fits[0].up) == {"model", "hyper"}
    assert set(generated.mine[1][0]) == {"distribution"}
    size = 8 * sum(x.numel() for x in START.values())
    assert linear.rounds[0].bytes_up == linear.rounds[0].bytes_down == size * len(CLIENTS)
