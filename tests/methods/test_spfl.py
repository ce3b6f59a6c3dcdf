"""SPFL and SPFL-w: the oracles of the facts sheet, and every option against plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import e, exp

import pytest
import torch
from torch import Tensor, nn

from idiolect import methods
from idiolect.core import tree
from idiolect.core.method import Server, Ups
from idiolect.core.net import Net
from idiolect.errors import UserError
from tests.conftest import ENGINES, run
from tests.methods.plain import (
    BODY,
    CLIENTS,
    HEAD,
    NET,
    START,
    TINY,
    TWINS,
    Client,
    NormNet,
    State,
    angle,
    assert_same,
    batches,
    combine,
    differ,
    federate,
    minus,
    seeded,
    sgd,
    share,
    vector,
)
from tests.watched import Watched

FULL = {"lr": 0.2, "batch_size": "full", "weight_decay": 0.0}
EVERY_TENSOR = [(n,) for n in START]


# --- similarity rows (oracles 1 and 6) ---


class Vector(nn.Module):
    """A model that is one weight vector of 10 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(10, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        return out


def mixing(probe: Tensor, sizes: list[int] | None = None, **options: object) -> Tensor:
    """The mixing matrix the server uses for clients whose updates are the rows of `probe`."""
    n = len(probe)
    method = methods.build({"name": "spfl", "stages": 1, **options})
    net = Net(Vector().double())
    start = {"head.weight": torch.zeros(1, 10, dtype=torch.float64)}
    counts = sizes or [7] * n
    state = method.server_init(net, start, range(n))
    server = Server(state, net=net, clients=range(n), sizes=dict(enumerate(counts)))
    update = {"head.weight": probe.double()[:, None, :]}
    of = torch.tensor(counts, dtype=torch.float64)
    ups = Ups({"probe": update, "update": update}, list(range(n)), of, [0] * n, 0)
    method.aggregate(server, ups)
    return server.logs["mixing_0"]


def test_two_orthogonal_clients() -> None:
    row = mixing(torch.eye(10)[:2])[0]
    assert row.tolist() == pytest.approx([0.731059, 0.268941], abs=1e-6)


def test_ten_orthogonal_clients() -> None:
    St = mixing(torch.eye(10) * 3)
    assert torch.allclose(St.diagonal(), torch.tensor(0.231969).double(), atol=1e-6)
    assert torch.allclose(St[0, 1:], torch.tensor(0.085337).double(), atol=1e-6)


def test_two_opposed_groups_of_five() -> None:
    sign = torch.tensor([1.0] * 5 + [-1.0] * 5)
    St = mixing(sign[:, None] * torch.arange(1.0, 11.0))
    assert torch.allclose(St[0, :5], torch.tensor(0.176159).double(), atol=1e-6)
    assert torch.allclose(St[0, 5:], torch.tensor(0.023841).double(), atol=1e-6)


def test_a_client_that_does_not_move_is_orthogonal_to_all() -> None:
    probe = torch.eye(10)[:2]
    probe[1] = 0
    St = mixing(probe)
    assert bool(torch.isfinite(St).all())
    assert St[0].tolist() == pytest.approx([e / (e + 1), 1 / (e + 1)])


def test_rows_are_positive_and_sum_to_one() -> None:
    ran = Watched({"name": "spfl", "batch_size": 4, "lr": 0.1}, TINY, NET, 2)
    for s in (0, 1):
        St = ran.logs(0)[f"mixing_{s}"]
        assert float(St.min()) > 0
        assert torch.allclose(St.sum(1), torch.ones(4).double(), atol=1e-6)


def test_literal_rows_sum_to_alpha_over_n() -> None:
    c = mixing(torch.randn(5, 10), weights="literal", alpha=0.01)
    assert torch.allclose(c.sum(1), torch.full((5,), 0.01 / 5).double(), atol=1e-12)


def test_data_weighted_rows() -> None:
    sizes = [1, 2, 5]
    c = mixing(torch.eye(10)[:3], sizes, weights="data_weighted")
    raw = [1 * e, 2.0, 5.0]
    assert c[0].tolist() == pytest.approx([r / sum(raw) for r in raw], abs=1e-12)


def test_temperature_divides_the_cosine() -> None:
    row = mixing(torch.eye(10)[:2], head_temperature=0.25)[0]
    assert row.tolist() == pytest.approx([exp(4) / (exp(4) + 1), 1 / (exp(4) + 1)], abs=1e-12)


# --- relations to other methods (oracles 2, 3, 4) ---


@pytest.mark.parametrize("two_step", [True, False])
def test_identical_clients_make_it_fedavg(two_step: bool) -> None:
    twins = federate(TWINS)
    ran = Watched({"name": "spfl", "two_step": two_step, "gamma": 2, **FULL}, twins, NET, 3)
    assert torch.allclose(ran.logs(0)["mixing_0"], torch.full((4, 4), 0.25).double(), atol=1e-9)
    average = {"name": "fedavg", "epochs": 2 if two_step else 1, **FULL}
    mean = run(methods.build(average), twins, NET).server["model"]
    for personal in ran.personal[-1]:
        assert_same(personal, mean, 1e-6)


def test_uniform_similarity_is_fedavg_for_one_round() -> None:
    ran = Watched(
        {"name": "spfl", "similarity": "uniform", "two_step": False, **FULL}, TINY, NET, 1
    )
    average = methods.build({"name": "fedavg", "weighting": "uniform", **FULL})
    mean = run(average, TINY, NET, 1).server["model"]
    for personal in ran.personal[0]:
        assert_same(personal, mean, 1e-12)


def test_spfl_and_spfl_w_coincide_from_equal_models() -> None:
    one, two = (Watched({"name": n, "gamma": 2, **FULL}, TINY, NET, 2) for n in ("spfl", "spfl_w"))
    for a, b in zip(one.personal[0], two.personal[0], strict=True):
        assert_same(a, b, 1e-12)
    assert differ(one.personal[1][0], two.personal[1][0])


def test_identity_without_refresh_average_is_local_training() -> None:
    settings = {"lr": 0.1, "batch_size": 4, "weight_decay": 0.0}
    alone = {"name": "spfl", "similarity": "identity", "refresh_average": False, "two_step": False}
    ran = Watched({**alone, "gamma": 2, **settings}, TINY, NET, 3)
    local = Watched({"name": "local", **settings}, TINY, NET, 3)
    for a, b in zip(ran.personal[-1], local.personal[-1], strict=True):
        assert_same(a, b, 1e-14)


# --- the two steps (oracle 5) ---


@pytest.mark.parametrize(("two_step", "factor"), [(True, 0.9801), (False, 0.99)])
def test_two_consecutive_steps_on_a_quadratic(two_step: bool, factor: float) -> None:
    """With one class the cross-entropy is 0 and weight decay h is the quadratic 0.5 h w^2."""
    one_class = [Client(c.x, torch.zeros_like(c.y)) for c in CLIENTS[:2]]
    net = Vector().double()
    net.head = nn.Linear(3, 1, bias=False).double()
    before = net.head.weight.detach().clone()
    method = {"name": "spfl", "lr": 0.1, "weight_decay": 0.1, "batch_size": "full"}
    ran = Watched({**method, "two_step": two_step}, federate(one_class, classes=1), net, 1)
    after = ran.personal[0][0]["head.weight"]
    assert torch.allclose(after / before, torch.full_like(before, factor), atol=1e-12)


# --- every option against a plain reference ---


@dataclass(frozen=True)
class Reference:
    """SPFL as the facts sheet tells it, with Python loops over clients."""

    gamma: int = 2
    lr: float = 0.2
    decay: float = 0.0
    steps: int = 2
    batch: int | None = None
    epochs: int = 1
    stages: tuple[tuple[str, ...], ...] = (BODY, HEAD)
    layers: tuple[float, ...] = ()  # of the body's weight matrices
    temperatures: tuple[float, ...] = (1.0, 1.0)
    own_head: bool = False
    weights: str = "softmax"
    alpha: float = 0.01
    eta: float = 1.0
    average: bool = True
    mix_models: bool = False

    def run(self, who: list[list[int]]) -> list[list[State]]:
        n = len(CLIENTS)
        w = [dict(START) for _ in CLIENTS]
        S = [torch.eye(n, dtype=torch.float64) for _ in self.stages]
        history = []
        for t, ids in enumerate(who):
            refresh = t % self.gamma == 0
            if refresh and self.average:
                w = [combine([1 / n] * n, w)] * n
            g = {i: minus(w[i], self.train(w[i], CLIENTS[i])) for i in ids}
            if refresh:
                self.measure(S, g)
            new = {i: self.moved(S, i, w, g) for i in ids}
            w = [new.get(i, w[i]) for i in range(n)]
            history.append(w)
        return history

    def train(self, state: State, client: Client) -> State:
        rows = batches(len(client), self.batch, self.epochs)
        return sgd(state, client, rows, lr=self.lr, decay=self.decay, repeat=self.steps)

    def measure(self, S: list[Tensor], g: dict[int, State]) -> None:
        for i in g:
            for j in g:
                for s, names in enumerate(self.stages):
                    if self.layers and s == 0:
                        own = dict(zip(weight_matrices(BODY), self.layers, strict=True))
                        S[s][i, j] = sum(c * cosine(g[i], g[j], (m,)) for m, c in own.items())
                    elif self.layers:  # the head's weights, not its bias
                        S[s][i, j] = cosine(g[i], g[j], tuple(weight_matrices(names)))
                    else:
                        S[s][i, j] = cosine(g[i], g[j], names)

    def moved(self, S: list[Tensor], i: int, w: list[State], g: dict[int, State]) -> State:
        out: State = {}
        total = sum(len(CLIENTS[j]) for j in g)
        for s, names in enumerate(self.stages):
            last = s == len(self.stages) - 1
            T = self.temperatures[1] if last else self.temperatures[0]
            raw = {j: exp(float(S[s][i, j]) / T) for j in g}
            c = {j: v / sum(raw.values()) for j, v in raw.items()}
            p = {j: len(CLIENTS[j]) / total for j in g}
            if self.weights == "literal":
                c = {j: self.alpha * p[j] * c[j] for j in g}
            elif self.weights == "data_weighted":
                scale = sum(p[j] * c[j] for j in g)
                c = {j: p[j] * c[j] / scale for j in g}
            if last and self.own_head:
                c = {j: float(j == i) for j in g}
            for name in names:
                if self.mix_models:
                    out[name] = sum(c[j] * (w[j][name] - g[j][name]) for j in g)
                else:
                    out[name] = w[i][name] - self.eta * sum(c[j] * g[j][name] for j in g)
        return {n: out[n] for n in START}


def weight_matrices(names: object) -> list[str]:
    return [n for n in names if n.endswith("weight")]  # type: ignore[attr-defined]


def cosine(a: State, b: State, names: tuple[str, ...]) -> float:
    return angle(vector(a, names), vector(b, names))


OPTIONS = {
    "default": ({}, Reference()),
    "one_step": ({"two_step": False}, Reference(steps=1)),
    "epochs_and_batches": (
        {"epochs": 2, "batch_size": 4, "order": "fixed"},
        Reference(epochs=2, batch=4),
    ),
    "weight_decay": ({"weight_decay": 0.05}, Reference(decay=0.05)),
    "gamma_3": ({"gamma": 3}, Reference(gamma=3)),
    "whole": ({"stages": 1}, Reference(stages=(tuple(START),))),
    "per_tensor": ({"stages": "tensor"}, Reference(stages=tuple(EVERY_TENSOR))),
    "layers": (
        {"similarity": "layers", "layer_weights": "0.7,0.3"},
        Reference(layers=(0.7, 0.3)),
    ),
    "temperatures": (
        {"temperature": 0.5, "head_temperature": 0.2},
        Reference(temperatures=(0.5, 0.2)),
    ),
    "own_head": ({"head": "own"}, Reference(own_head=True)),
    "data_weighted": ({"weights": "data_weighted"}, Reference(weights="data_weighted")),
    "literal": ({"weights": "literal", "alpha": 3.0}, Reference(weights="literal", alpha=3.0)),
    "eta": ({"eta": 0.5}, Reference(eta=0.5)),
    "no_average": ({"refresh_average": False}, Reference(average=False)),
    "spfl_w": ({"name": "spfl_w"}, Reference(mix_models=True)),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", OPTIONS)
def test_option(case: str, engine: str) -> None:
    options, reference = OPTIONS[case]
    method = {"name": "spfl", "gamma": 2, **FULL, **options}
    ran = Watched(method, TINY, NET, 4, engine=engine)
    expected = reference.run([[0, 1, 2, 3]] * 4)
    for t in range(4):
        for i in range(4):
            assert_same(ran.personal[t][i], expected[t][i], what=f"round {t} client {i}")


def test_options_really_change_the_result() -> None:
    everyone = [[0, 1, 2, 3]] * 4
    default = Reference().run(everyone)[-1][0]
    for case, (_, reference) in OPTIONS.items():
        assert case == "default" or differ(reference.run(everyone)[-1][0], default), case


@pytest.mark.parametrize("case", ["default", "data_weighted", "spfl_w"])
def test_partial_participation(case: str) -> None:
    """Arrivals mix among themselves with what is known of them; the others keep their models."""
    options, reference = OPTIONS[case]
    who = [[0, 1, 3], [1, 2], [0, 2, 3], [0, 1, 2, 3], [0, 1]]
    method = {"name": "spfl", "gamma": 2, **FULL, **options}
    ran = Watched(method, TINY, NET, 5, schedule=who)
    expected = reference.run(who)
    for t in range(5):
        for i in range(4):
            assert_same(ran.personal[t][i], expected[t][i], what=f"round {t} client {i}")


# --- refresh ---


def test_refresh_every_gamma_rounds_sends_the_uniform_mean() -> None:
    ran = Watched({"name": "spfl", "gamma": 2, **FULL}, TINY, NET, 4)
    assert [("similarity_0" in ran.logs(t)) for t in range(4)] == [True, False, True, False]
    mean = combine([0.25] * 4, ran.personal[1])
    sent = ran.downs[2]["model"]
    for i in range(4):
        assert_same(tree.client(sent, i), mean, 1e-14)
    assert differ(tree.client(ran.downs[3]["model"], 0), ran.personal[2][1])


def test_refresh_costs_one_more_upload() -> None:
    ran = Watched({"name": "spfl", "gamma": 2, **FULL}, TINY, NET, 2)
    size = 8 * sum(v.numel() for v in START.values())
    assert [r.bytes_up for r in ran.rounds] == [2 * 4 * size, 4 * size]
    assert [r.bytes_down for r in ran.rounds] == [4 * size, 4 * size]


def test_similarity_training_has_its_own_shuffles() -> None:
    """The probe of a refresh round and the training after it see different batches."""
    ran = Watched({"name": "spfl", "lr": 0.2, "batch_size": 4}, TINY, NET, 1)
    assert differ(ran.up(0, "probe", 1), ran.up(0, "update", 1))


def test_batchnorm_statistics_stay_with_the_client() -> None:
    ran = Watched({"name": "spfl", "gamma": 2, **FULL}, TINY, seeded(NormNet), 2)
    assert not [n for n in tree.leaves(ran.fits[0].up) if "running" in n]
    means = [p["body.1.running_mean"] for p in ran.personal[1]]
    assert all(differ({"m": means[0]}, {"m": m}) for m in means[1:])
    kept = ran.mine[2][0]["stats"]["body.1.running_mean"]
    assert torch.equal(kept, means[0])


def test_wrong_number_of_layer_weights() -> None:
    method = methods.build({"name": "spfl", "similarity": "layers", **FULL})
    with pytest.raises(UserError, match=r"layer_weights has 3 values but the body has 2 layers"):
        run(method, TINY, NET, 1)


def test_references_disagree_where_they_should() -> None:
    """The reference itself is sensitive: another share of samples is another result."""
    p = share(CLIENTS)
    assert max(p) - min(p) > 0.1
    everyone = [[0, 1, 2, 3]] * 2
    other = replace(Reference(), lr=0.21)
    assert differ(other.run(everyone)[-1][0], Reference().run(everyone)[-1][0])


def test_layer_weights_are_numbers() -> None:
    with pytest.raises(UserError, match=r"method\.layer_weights must be numbers like 0\.5,0\.3"):
        methods.build({"name": "spfl", "layer_weights": "half,half"})


@pytest.mark.parametrize(
    "method", [{"name": "spfl"}, {"name": "spfl_w"}, {"name": "spfl_w", "variant": "code"}]
)
def test_a_refresh_without_anybody(method: dict[str, str]) -> None:
    """As it may be where each client comes with a chance: nothing is known of similarity."""
    given = {**method, **FULL, "gamma": 2, "two_step": False}
    ran = Watched(given, TINY, NET, 3, schedule=[[], [0, 1], [0, 1]])
    assert "similarity_0" in ran.logs(2)
    rest = 1 / (1 + e)
    wanted = torch.tensor([[1 - rest, rest], [rest, 1 - rest]]).double()
    torch.testing.assert_close(ran.logs(1)["mixing_0"][:2, :2], wanted)
