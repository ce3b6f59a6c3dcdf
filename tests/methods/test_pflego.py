"""PFLEGO: exact SGD, cached features, and every option against the paper's formulas."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idiolect import methods
from idiolect.core import tree
from idiolect.errors import UserError
from idiolect.simulation.schedule import Participation
from tests.conftest import ENGINES, run, simulation
from tests.methods.plain import (
    BODY,
    CLASSES,
    CLIENTS,
    HEAD,
    NET,
    START,
    TINY,
    NormNet,
    State,
    TinyNet,
    assert_same,
    differ,
    federate,
    model_with,
    seeded,
    share,
)
from tests.watched import Watched

SGD = {"server": "sgd", "rho": 0.3, "beta": 0.2, "head_init": "start"}
OWN = [sorted(set(c.y.tolist())) for c in CLIENTS]  # the classes each client has


def matrix(head: State, i: int) -> Tensor:
    """W_i of the paper: rows are the client's own classes, the last column is the bias."""
    W = torch.cat([head["head.weight"], head["head.bias"][:, None]], 1)
    return W[OWN[i]]


def labels(i: int) -> Tensor:
    """Re-indexed 0..K_i-1 by sorted original label."""
    return torch.tensor([OWN[i].index(int(c)) for c in CLIENTS[i].y])


def features(theta: State, i: int) -> Tensor:
    """Phi with its constant 1."""
    phi = torch.func.functional_call(seeded(TinyNet).body, cut(theta), CLIENTS[i].x)
    return torch.cat([phi, torch.ones(len(phi), 1, dtype=phi.dtype)], 1)


def cut(theta: State) -> State:
    return {n.removeprefix("body."): v for n, v in theta.items()}


def objective(theta: State, W: Tensor, i: int) -> Tensor:
    return F.cross_entropy(features(theta, i) @ W.T, labels(i))


def body_of(state: State) -> State:
    return {n: state[n] for n in BODY}


@dataclass(frozen=True)
class Reference:
    """Algorithm 1 with the paper's matrices, one client at a time."""

    tau: int = 4
    beta: float = 0.2
    rho: float = 0.3
    adam: bool = False
    exact: bool = False
    sampled: bool = False

    def run(self, heads: list[Tensor], who: list[list[int]]) -> tuple[list[State], list[Any]]:
        theta = {n: v.clone().requires_grad_() for n, v in body_of(START).items()}
        kind = torch.optim.Adam if self.adam else torch.optim.SGD
        server = kind(theta.values(), lr=self.rho)
        W = list(heads)
        thetas, Ws = [], []
        for ids in who:
            total = sum(len(CLIENTS[i]) for i in (ids if self.sampled else range(4)))
            alpha = {i: len(CLIENTS[i]) / total for i in ids}
            scale = len(CLIENTS) / len(ids)
            server.zero_grad()
            for i in ids:
                W[i] = self.head_steps(theta, W[i], i).detach().clone().requires_grad_()
                value = objective(theta, W[i], i)
                *g, own = torch.autograd.grad(value, [*theta.values(), W[i]])
                for parameter, part in zip(theta.values(), g, strict=True):
                    step = scale * alpha[i] * part
                    parameter.grad = step if parameter.grad is None else parameter.grad + step
                W[i] = W[i].detach() - self.rho * scale * (alpha[i] if self.exact else 1) * own
            server.step()
            thetas.append({n: v.detach().clone() for n, v in theta.items()})
            Ws.append(list(W))
        return thetas, Ws

    def head_steps(self, theta: State, W: Tensor, i: int) -> Tensor:
        """tau - 1 steps with the analytic gradient, features computed anew for each."""
        Y = F.one_hot(labels(i), len(OWN[i])).double()
        for _ in range(self.tau - 1):
            Phi = features(theta, i).detach()
            W = W + self.beta * (Y - torch.softmax(Phi @ W.T, 1)).T @ Phi / len(Y)
        return W


HEADS = [matrix(START, i) for i in range(4)]
EVERYONE = [[0, 1, 2, 3]] * 3
OPTIONS = {
    "default": ({}, Reference()),
    "one_step": ({"tau": 1}, Reference(tau=1)),
    "adam": ({"server": "adam", "rho": 0.05}, Reference(adam=True, rho=0.05)),
    "exact": ({"head_step": "exact"}, Reference(exact=True)),
    "beta": ({"beta": 0.05}, Reference(beta=0.05)),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", OPTIONS)
def test_option(case: str, engine: str) -> None:
    options, reference = OPTIONS[case]
    ran = Watched({"name": "pflego", "tau": 4, **SGD, **options}, TINY, NET, 3, engine=engine)
    thetas, Ws = reference.run(HEADS, EVERYONE)
    for t in range(3):
        assert_same(ran.server[t]["theta"], thetas[t], what=f"theta {t}")
        for i in range(4):
            gap = matrix(ran.mine[t + 1][i]["head"], i) - Ws[t][i]
            assert float(gap.abs().max()) < 1e-11
            assert_same(body_of(ran.personal[t][i]), thetas[t])


def test_options_really_change_the_result() -> None:
    default = Reference().run(HEADS, EVERYONE)[0][-1]
    for case, (_, reference) in OPTIONS.items():
        assert case == "default" or differ(reference.run(HEADS, EVERYONE)[0][-1], default), case


@pytest.mark.parametrize(
    ("options", "reference"),
    [
        ({}, Reference()),
        ({"alpha": "sampled"}, Reference(sampled=True)),
        ({"alpha": "sampled", "head_step": "exact"}, Reference(sampled=True, exact=True)),
        ({"head_step": "exact"}, Reference(exact=True)),
        ({"server": "adam", "rho": 0.05}, Reference(adam=True, rho=0.05)),
    ],
)
def test_partial_participation(options: dict, reference: Reference) -> None:
    who = [[0, 2, 3], [1], [0, 3]]
    ran = Watched({"name": "pflego", "tau": 4, **SGD, **options}, TINY, NET, 3, schedule=who)
    thetas, Ws = reference.run(HEADS, who)
    for t in range(3):
        assert_same(ran.server[t]["theta"], thetas[t], what=f"theta {t}")
        for i in range(4):
            gap = matrix(ran.mine[t + 1][i]["head"], i) - Ws[t][i]
            assert float(gap.abs().max()) < 1e-11, f"head {t} {i}"


# --- oracle 1: exact SGD ---


@pytest.mark.parametrize("engine", ENGINES)
def test_one_round_is_one_centralized_gradient_step(engine: str) -> None:
    method = {"name": "pflego", **SGD, "tau": 1, "head_step": "exact"}
    ran = Watched(method, TINY, NET, 1, engine=engine)
    theta = {n: v.clone().requires_grad_() for n, v in body_of(START).items()}
    W = [h.clone().requires_grad_() for h in HEADS]
    optimizer = torch.optim.SGD([*theta.values(), *W], lr=SGD["rho"])
    parts = [a * objective(theta, W[i], i) for i, a in enumerate(share(CLIENTS))]
    torch.stack(parts).sum().backward()
    optimizer.step()
    assert_same(ran.server[0]["theta"], {n: v.detach() for n, v in theta.items()}, 1e-12)
    for i in range(4):
        gap = matrix(ran.mine[1][i]["head"], i) - W[i].detach()
        assert float(gap.abs().max()) < 1e-12


def test_literal_head_step_is_one_over_alpha_times_larger() -> None:
    literal, exact = (
        Watched({"name": "pflego", **SGD, "tau": 1, "head_step": s}, TINY, NET, 1)
        for s in ("literal", "exact")
    )
    for i, a in enumerate(share(CLIENTS)):
        long, short = (matrix(r.mine[1][i]["head"], i) - HEADS[i] for r in (literal, exact))
        assert torch.allclose(short, a * long, rtol=1e-10, atol=1e-15)
        assert float(long.abs().max()) > 1e-3


# --- oracle 2: unbiased ---


def test_average_over_all_subsets_is_the_full_gradient() -> None:
    method = methods.build({"name": "pflego", **SGD, "tau": 1, "head_step": "exact"})
    full = run(method, TINY, NET, 1)
    subsets = [list(s) for s in combinations(range(4), 2)]
    runs = [run(method, TINY, NET, 1, schedule=[s]) for s in subsets]
    for n in BODY:
        mean = torch.stack([r.server["theta"][n] for r in runs]).mean(0)
        assert torch.allclose(mean, full.server["theta"][n], atol=1e-14)
    for i in range(4):
        for n in HEAD:
            heads = torch.stack([r.mine[[i]]["head"][n][0] for r in runs])
            assert torch.allclose(heads.mean(0), full.mine[[i]]["head"][n][0], atol=1e-13)


def test_binomial_participation_is_unbiased_by_the_expected_number() -> None:
    """Over all subsets, each as likely as it is when every client comes with probability 0.3."""
    rate = 0.3
    method = methods.build({"name": "pflego", **SGD, "tau": 1, "head_step": "exact"})
    full = run(method, TINY, NET, 1)
    mean = {n: torch.zeros_like(START[n]) for n in BODY}
    drawn = {n: torch.zeros_like(START[n]) for n in BODY}
    for size in range(5):
        for ids in combinations(range(4), size):
            chance = rate**size * (1 - rate) ** (4 - size)
            for total, r in ((mean, rate * 4), (drawn, None)):
                theta = body_of(START)
                if ids:
                    sim = simulation(method, TINY, NET, 1, schedule=[list(ids)])
                    sim.server.expected = r
                    sim.step()
                    theta = sim.server["theta"]
                for n in BODY:
                    total[n] += chance * theta[n]
    assert_same(mean, full.server["theta"], 1e-13)
    assert differ(drawn, full.server["theta"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"participation": Participation("binomial", 0.3)}, 1.2),
        ({"participation": 0.6}, 2),
        ({}, 4),
        ({"schedule": [[0, 1]]}, None),
    ],
)
def test_who_is_expected(options: dict, expected: float | None) -> None:
    sim = simulation(methods.build("pflego"), TINY, NET, 1, **options)
    assert sim.server.expected == (expected if expected is None else pytest.approx(expected))


def test_ratio_of_those_drawn() -> None:
    """The two differ only where the number drawn varies."""
    some = {"participation": Participation("binomial", 0.5), "seed": 2}
    method = {"name": "pflego", **SGD, "tau": 2}
    by = {r: Watched({**method, "ratio": r}, TINY, NET, 1, **some) for r in ("expected", "drawn")}
    count = len(by["drawn"].rounds[0].started)
    assert count not in (0, 2)
    moved = {
        r: (w.server[0]["theta"]["body.0.weight"] - START["body.0.weight"]) for r, w in by.items()
    }
    assert torch.allclose(moved["expected"] * 2, moved["drawn"] * count, atol=1e-13)


# --- oracle 4: cached features ---


@pytest.mark.parametrize("tau", [2, 50])
def test_two_network_passes_whatever_tau(tau: int) -> None:
    method = methods.build({"name": "pflego", "tau": tau})
    sim = simulation(method, TINY, NET, 1, engine="loop")
    calls: list[int] = []
    for net in (sim.engine.net, sim.engine.train_net):
        net.module.body.register_forward_hook(lambda m, x, y: calls.append(len(y)))
    mine = sim.mine[[1]]
    down = method.download(sim.server, [1]).stacked(1)
    method.fit(down, mine, sim.engine.local([1], 0))
    assert calls == [9, 9]


# --- oracle 5: head steps ---


def test_head_steps_never_increase_the_loss() -> None:
    """rho = 0 leaves theta and the last step out: only the tau - 1 head steps are seen."""
    for i in range(4):
        values = []
        for tau in (1, 2, 3, 5, 9, 20):
            options = {**SGD, "tau": tau, "rho": 0.0, "beta": 0.1}
            ran = run(methods.build({"name": "pflego", **options}), TINY, NET, 1)
            W = matrix(tree.client(ran.mine[[i]]["head"], 0), i)
            values.append(float(objective(body_of(START), W, i)))
        assert values == sorted(values, reverse=True)
        assert values[-1] < values[0] - 0.01


def test_theta_gradient_is_taken_before_the_last_head_move() -> None:
    """It does not depend on rho, and is the gradient at the head after tau - 1 steps."""
    small, large = (
        Watched({"name": "pflego", **SGD, "tau": 3, "rho": rho}, TINY, NET, 1)
        for rho in (0.01, 0.5)
    )
    for i in range(4):
        assert_same(small.up(0, "gradient", i), large.up(0, "gradient", i), 0)
        theta = {n: v.clone().requires_grad_() for n, v in body_of(START).items()}
        W = Reference(tau=3).head_steps(theta, HEADS[i], i)
        g = torch.autograd.grad(objective(theta, W, i), list(theta.values()))
        assert_same(small.up(0, "gradient", i), dict(zip(theta, g, strict=True)), 1e-14)


# --- oracle 6, heads ---


def test_client_not_sampled_keeps_its_head_bit_for_bit() -> None:
    ran = Watched({"name": "pflego", "tau": 3}, TINY, NET, 2, schedule=[[0, 1], [1, 2]])
    for t, away in ((1, (2, 3)), (2, (0, 3))):
        for i in away:
            assert_same(ran.mine[t][i]["head"], ran.mine[t - 1][i]["head"], 0)
    assert differ(ran.mine[2][1]["head"], ran.mine[1][1]["head"])


def test_uniform_heads_are_each_clients_own() -> None:
    sim = simulation(methods.build("pflego"), TINY, NET, 1)
    heads = [matrix(tree.client(sim.mine[[i]]["head"], 0), i) for i in range(4)]
    for W in heads:
        assert 0 <= float(W.min()) < float(W.max()) < 1
    rows = torch.cat(heads)
    assert len({tuple(r) for r in rows.tolist()}) == len(rows)


def test_other_classes_are_never_predicted() -> None:
    ran = Watched({"name": "pflego", "tau": 3}, TINY, NET, 2)
    for i in range(4):
        with torch.no_grad():
            p = torch.softmax(model_with(ran.personal[1][i])(CLIENTS[i].x), 1)
        others = [c for c in range(CLASSES) if c not in OWN[i]]
        assert others
        assert float(p[:, others].max()) == 0.0


def test_batchnorm_statistics_stay_with_the_client() -> None:
    ran = Watched({"name": "pflego", "tau": 2}, TINY, seeded(NormNet), 1)
    assert not [n for n in tree.leaves(ran.fits[0].up) if "running" in n or "head" in n]
    x = CLIENTS[2].x
    batch = nn.functional.linear(
        x, *(seeded(NormNet).state_dict()[f"body.0.{k}"] for k in ("weight", "bias"))
    )
    mean = 0.1 * batch.mean(0)
    assert torch.allclose(ran.personal[0][2]["body.1.running_mean"], mean, atol=1e-12)


@pytest.mark.parametrize("head_step", ["literal", "exact"])
@pytest.mark.parametrize("alpha", ["all", "sampled"])
def test_held_out_clients(alpha: str, head_step: str) -> None:
    method = methods.build({"name": "pflego", "tau": 2, "alpha": alpha, "head_step": head_step})
    sim = run(method, federate(CLIENTS, unseen=(1,)), NET, 2)
    assert bool(torch.isfinite(torch.as_tensor(sim.scores.columns["accuracy_after"])).all())


def test_traffic_is_two_bodies_and_a_number() -> None:
    ran = Watched({"name": "pflego", "tau": 2}, TINY, NET, 1)
    size = 8 * sum(START[n].numel() for n in BODY)
    assert ran.rounds[0].bytes_up == 4 * size
    assert ran.rounds[0].bytes_down == 4 * (size + 8)


class NoBias(TinyNet):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, CLASSES, bias=False)


class DeepHead(TinyNet):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, CLASSES))  # type: ignore[assignment]


@pytest.mark.parametrize(("kind", "word"), [(NoBias, "bias=True"), (DeepHead, "linear layer")])
def test_a_head_it_cannot_use(kind: type[nn.Module], word: str) -> None:
    with pytest.raises(UserError, match=word):
        run(methods.build("pflego"), TINY, seeded(kind), 1)
