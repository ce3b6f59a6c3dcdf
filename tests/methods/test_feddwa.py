"""FedDWA: weights in closed form, every guidance, top-K and participation in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from idiolect import methods
from idiolect.core import tree
from idiolect.core.method import Server, Ups
from idiolect.core.net import Net
from tests.conftest import ENGINES
from tests.methods.plain import (
    CLIENTS,
    NET,
    START,
    TINY,
    TWINS,
    Client,
    NormNet,
    State,
    assert_same,
    batches,
    combine,
    differ,
    federate,
    gradient,
    minus,
    seeded,
    sgd,
    vector,
)
from tests.watched import Watched

FULL = {"lr": 0.2, "batch_size": "full"}
FIXED = {"lr": 0.2, "batch_size": 4, "order": "fixed"}


def weights(guidance: Sequence[float], models: Sequence[float], top_k: int = 5) -> Tensor:
    """p for one-number models, straight from the server's aggregation."""
    n = len(models)
    net = Net(nn.Sequential(nn.Linear(1, 1, bias=False)).double())
    method = methods.build({"name": "feddwa", "top_k": top_k})

    def stack(values: Sequence[float]) -> State:
        return {"0.weight": torch.tensor(values, dtype=torch.float64).reshape(n, 1, 1)}

    start = {"0.weight": torch.zeros(1, 1, dtype=torch.float64)}
    state = method.server_init(net, start, range(n))
    server = Server(state, net=net, clients=range(n), sizes=dict.fromkeys(range(n), 1))
    record = {"model": stack(models), "guidance": stack(guidance)}
    ups = Ups(record, list(range(n)), torch.ones(n, dtype=torch.float64), [0] * n, 0)
    method.aggregate(server, ups)
    return server.logs["aggregation_weight"]


# --- weights in closed form (oracles 1, 2; guards) ---

THREE = ([0.0, 0.0, 0.0], [1.0, 2**0.5, 2.0])  # d = 1, 2, 4 from every guidance


def test_inverse_distance_is_the_best_mixture() -> None:
    p = weights(*THREE)[0]
    assert p.tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7], abs=1e-12)
    d = torch.tensor([1.0, 2.0, 4.0]).double()

    def objective(q: Tensor) -> float:
        return float((q * q * d).sum())

    assert objective(p) == pytest.approx(1 / 1.75, abs=1e-12)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        step = torch.randn(3, generator=generator).double() * 0.05
        q = p + step - step.mean()
        if float(q.min()) >= 0:
            assert objective(q) > objective(p)


def test_top_two() -> None:
    assert weights(*THREE, top_k=2)[0].tolist() == pytest.approx([2 / 3, 1 / 3, 0], abs=1e-12)


def test_top_k_of_all_or_more_prunes_nothing() -> None:
    assert torch.equal(weights(*THREE, top_k=3), weights(*THREE, top_k=100))


def test_ties_go_to_the_lower_index() -> None:
    p = weights([0.0] * 4, [1.0, -1.0, 1.0, 2.0], top_k=2)
    assert p[3].tolist() == [0.5, 0.5, 0.0, 0.0]


def test_distance_zero_takes_all() -> None:
    p = weights([1.0, 0.0, 0.0], [1.0, 2.0, 3.0])
    assert p[0].tolist() == [1.0, 0.0, 0.0]
    assert p[1].tolist() == pytest.approx([36 / 49, 9 / 49, 4 / 49], abs=1e-12)


def test_several_zeros_share() -> None:
    p = weights([1.0, 1.0, 5.0], [1.0, 1.0, 3.0])
    assert p[0].tolist() == [0.5, 0.5, 0.0]
    assert bool(torch.isfinite(p).all())


def test_rows_sum_to_one_with_at_most_k_entries() -> None:
    ran = Watched({"name": "feddwa", "top_k": 2, "lr": 0.1, "batch_size": 4}, TINY, NET, 3)
    for t in range(3):
        p = ran.logs(t)["aggregation_weight"]
        assert torch.allclose(p.sum(1), torch.ones(4).double(), atol=1e-12)
        assert float(p.min()) >= 0
        assert (p > 0).sum(1).tolist() == [2, 2, 2, 2]


# --- relations (oracles 3, 4, 5, 6) ---


def test_exchanging_two_clients_permutes_rows_and_columns() -> None:
    other = [2, 1, 0, 3]
    swapped = federate([CLIENTS[i] for i in other])
    a, b = (Watched({"name": "feddwa", **FULL}, f, NET, 2) for f in (TINY, swapped))
    for t in range(2):
        p, q = a.logs(t)["aggregation_weight"], b.logs(t)["aggregation_weight"]
        assert torch.allclose(p[other][:, other], q, atol=1e-12)
        for i, j in enumerate(other):
            assert_same(b.personal[t][i], a.personal[t][j], 1e-12)


def test_equal_models_give_that_model_whatever_the_weights() -> None:
    ran = Watched({"name": "feddwa", **FULL}, federate(TWINS), NET, 2)
    for i in range(4):
        assert_same(ran.personal[1][i], tree.client(ran.fits[1].up["model"], 0), 1e-14)


@pytest.mark.parametrize("guidance", ["one_epoch", "full_gradient"])
def test_top_one_close_to_own_model_is_local_training(guidance: str) -> None:
    method = {"name": "feddwa", "top_k": 1, "guidance": guidance}
    ran = Watched({**method, **FULL, "lr": 0.05}, TINY, NET, 2)
    alone = Watched({"name": "local", **FULL, "lr": 0.05}, TINY, NET, 2)
    assert torch.equal(ran.logs(1)["aggregation_weight"], torch.eye(4).double())
    for a, b in zip(ran.personal[1], alone.personal[1], strict=True):
        assert_same(a, b, 0)


def test_smaller_steps_ahead_mean_more_of_oneself() -> None:
    """Two rounds at the usual rate, then a guidance step that shrinks towards 0."""

    def own(scale: float) -> float:
        models = [0.0, 1.0, 2.5]
        return weights([m + scale for m in models], models).diagonal().min().item()

    assert own(0.3) < own(0.03) < own(0.003)
    assert own(0.003) > 0.99997


def test_batchnorm_statistics_are_not_touched_by_delivery() -> None:
    ran = Watched({"name": "feddwa", **FULL}, TINY, seeded(NormNet), 2)
    assert not [n for n in tree.leaves(ran.fits[0].up) if "running" in n]
    for i in range(4):
        own = ran.fits[1].trained
        for stat in ("body.1.running_mean", "body.1.running_var"):
            assert torch.equal(ran.personal[1][i][stat], own[stat][i])
            assert torch.equal(ran.mine[2][i]["stats"][stat], own[stat][i])


def test_guidance_leaves_the_statistics_where_training_left_them() -> None:
    """The guidance model is thrown away, its statistics with it."""
    with_it, without = (
        Watched({"name": "feddwa", "guidance": g, **FULL}, TINY, seeded(NormNet), 1)
        for g in ("n_epochs", "last_round")
    )
    for i in range(4):
        assert_same(with_it.mine[1][i]["stats"], without.mine[1][i]["stats"], 0)


def test_traffic() -> None:
    size = 8 * sum(v.numel() for v in START.values())
    ran = Watched({"name": "feddwa", **FULL}, TINY, NET, 1)
    assert (ran.rounds[0].bytes_up, ran.rounds[0].bytes_down) == (8 * size, 4 * size)
    last = Watched({"name": "feddwa", "guidance": "last_round", **FULL}, TINY, NET, 1)
    assert (last.rounds[0].bytes_up, last.rounds[0].bytes_down) == (4 * size, 4 * size)


# --- every option against a plain reference ---


@dataclass(frozen=True)
class Reference:
    """FedDWA with Python loops over clients."""

    guidance: str = "one_epoch"
    guidance_epochs: int = 1
    epochs: int = 1
    batch: int | None = None
    top_k: int = 5
    lr: float = 0.2

    def run(self, who: list[list[int]]) -> tuple[list[list[State]], list[Tensor]]:
        w = [dict(START) for _ in CLIENTS]
        self_trained = [dict(START) for _ in CLIENTS]
        models, ps = [], []
        for t, ids in enumerate(who):
            trained = {i: self.train(w[i], i, self.epochs) for i in ids}
            ahead = {i: self.ahead(w[i], self_trained[i], trained[i], i, t) for i in ids}
            for i in ids:
                self_trained[i] = trained[i]
            p = torch.zeros(len(ids), len(ids), dtype=torch.float64)
            for a, i in enumerate(ids):
                closeness = {}
                for b, j in enumerate(ids):
                    d = float(vector(minus(ahead[i], trained[j])).square().sum())
                    closeness[b] = 1 / d
                best = sorted(closeness, key=lambda b: -closeness[b])[: self.top_k]
                for b in best:
                    p[a, b] = closeness[b] / sum(closeness[c] for c in best)
            w = list(w)
            for a, i in enumerate(ids):
                w[i] = combine(p[a], [trained[j] for j in ids])
            models.append(w)
            ps.append(p)
        return models, ps

    def train(self, state: State, i: int, epochs: int) -> State:
        rows = batches(len(CLIENTS[i]), self.batch, epochs)
        return sgd(state, CLIENTS[i], rows, lr=self.lr)

    def ahead(self, sent: State, before: State, trained: State, i: int, t: int) -> State:
        client = CLIENTS[i]
        if self.guidance == "received":
            return sent
        if self.guidance == "last_round":
            return before
        if self.guidance == "full_gradient":
            step = gradient(trained, client)
            return {n: trained[n] - self.lr * step[n] for n in trained}
        if self.guidance == "one_batch":
            rows = batches(len(client), self.batch)
            return sgd(trained, client, [rows[t % len(rows)]], lr=self.lr)
        return self.train(trained, i, self.guidance_epochs)


EVERYONE = [[0, 1, 2, 3]] * 3
OPTIONS = {
    "default": ({}, Reference()),
    "epochs_and_batches": ({**FIXED, "epochs": 2}, Reference(epochs=2, batch=4)),
    "top_1": ({"top_k": 1}, Reference(top_k=1)),
    "top_3": ({"top_k": 3}, Reference(top_k=3)),
    "n_epochs": (
        {"guidance": "n_epochs", "guidance_epochs": 3},
        Reference(guidance="n_epochs", guidance_epochs=3),
    ),
    "full_gradient": (
        {**FIXED, "guidance": "full_gradient"},
        Reference(guidance="full_gradient", batch=4),
    ),
    "last_round": ({"guidance": "last_round"}, Reference(guidance="last_round")),
    "received": ({"guidance": "received"}, Reference(guidance="received")),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", OPTIONS)
def test_option(case: str, engine: str) -> None:
    options, reference = OPTIONS[case]
    ran = Watched({"name": "feddwa", **FULL, **options}, TINY, NET, 3, engine=engine)
    models, ps = reference.run(EVERYONE)
    for t in range(3):
        assert torch.allclose(ran.logs(t)["aggregation_weight"], ps[t], atol=1e-10)
        for i in range(4):
            assert_same(ran.personal[t][i], models[t][i], what=f"round {t} client {i}")


def test_options_really_change_the_result() -> None:
    default = Reference().run(EVERYONE)[0][-1][0]
    for case, (_, reference) in OPTIONS.items():
        assert case == "default" or differ(reference.run(EVERYONE)[0][-1][0], default), case


@pytest.mark.parametrize("engine", ENGINES)
def test_one_batch(engine: str) -> None:
    """Each round looks ahead with one mini-batch, the next one every time."""
    method = {"name": "feddwa", "guidance": "one_batch", **FIXED}
    ran = Watched(method, TINY, NET, 3, engine=engine)
    models, _ = Reference(guidance="one_batch", batch=4).run(EVERYONE)
    for t in range(3):
        for i in range(4):
            assert_same(ran.personal[t][i], models[t][i], what=f"round {t} client {i}")


def test_current_guidance_leaves_every_client_alone() -> None:
    """A model's distance to itself is 0."""
    ran = Watched({"name": "feddwa", "guidance": "current", **FULL}, TINY, NET, 2)
    alone = Watched({"name": "local", **FULL}, TINY, NET, 2)
    assert torch.equal(ran.logs(1)["aggregation_weight"], torch.eye(4).double())
    for a, b in zip(ran.personal[1], alone.personal[1], strict=True):
        assert_same(a, b, 0)
    size = 8 * sum(v.numel() for v in START.values())
    assert ran.rounds[0].bytes_up == 4 * size


def test_last_round_is_the_clients_own_last_time() -> None:
    """A client that was away is guided by what it trained when it was there."""
    who = [[0, 1, 3], [1, 2], [0, 2, 3], [1, 3]]
    method = {"name": "feddwa", "guidance": "last_round", **FULL}
    ran = Watched(method, TINY, NET, 4, schedule=who)
    models, ps = Reference(guidance="last_round").run(who)
    for t in range(4):
        assert torch.allclose(ran.shown(t, "aggregation_weight"), ps[t], atol=1e-10)
        for i in range(4):
            assert_same(ran.personal[t][i], models[t][i], what=f"round {t} client {i}")


def own_group(guidance: str, rounds: int = 6) -> float:
    """Share of a client's two partners that are of its group, in the last round; two groups of
    three clients with opposite labels."""
    generator = torch.Generator().manual_seed(0)
    clients = []
    for group in (0, 0, 0, 1, 1, 1):
        x = torch.randn(30, 3, generator=generator, dtype=torch.float64)
        y = ((x[:, 0] > 0).long() + group) % 2
        clients.append(Client(x, y))
    method = {"name": "feddwa", "guidance": guidance, "top_k": 3, "lr": 0.3, "batch_size": 5}
    ran = Watched(method, federate(clients), NET, rounds)
    p = ran.logs(rounds - 1)["aggregation_weight"]
    others = (p > 0) & ~torch.eye(6, dtype=torch.bool)
    same = torch.tensor([[(i < 3) == (j < 3) for j in range(6)] for i in range(6)])
    return float((others & same).sum() / others.sum())


@pytest.mark.parametrize("guidance", ["one_epoch", "last_round"])
def test_partners_are_of_the_own_group(guidance: str) -> None:
    """Chance is 2 of 5. Guided by the mixed model it received, every client has the same row."""
    assert own_group(guidance) > 0.8
    assert own_group("received") < 0.6


@pytest.mark.parametrize("top_k", [5, 2])
def test_partial_participation(top_k: int) -> None:
    """Mixing among the participants only; the others keep what they had."""
    who = [[0, 1, 3], [1, 2], [0, 2, 3], [2]]
    ran = Watched({"name": "feddwa", "top_k": top_k, **FULL}, TINY, NET, 4, schedule=who)
    models, ps = Reference(top_k=top_k).run(who)
    for t in range(4):
        assert torch.allclose(ran.shown(t, "aggregation_weight"), ps[t], atol=1e-10)
        for i in range(4):
            assert_same(ran.personal[t][i], models[t][i], what=f"round {t} client {i}")
    for i in (0, 1, 3):
        assert_same(ran.personal[3][i], ran.personal[2][i], 0)


def test_more_guidance_epochs_go_further() -> None:
    """Chained, not restarted: the displacement grows."""

    def displacement(epochs: int) -> float:
        method = {"name": "feddwa", "guidance": "n_epochs", "guidance_epochs": epochs, **FULL}
        ran = Watched(method, TINY, NET, 1)
        return float(vector(minus(ran.up(0, "guidance", 0), ran.up(0, "model", 0))).norm())

    assert displacement(4) > 2 * displacement(1)


def test_logs_stand_at_the_clients_ids() -> None:
    """Client 1 never trains, client 3 is not there: rows and columns of ids, NaN for the absent."""
    federation = federate(CLIENTS, unseen=(1,))
    ran = Watched({"name": "feddwa", **FULL}, federation, NET, 1, schedule=[[0, 2]])
    p = ran.logs(0)["aggregation_weight"]
    assert p.shape == (4, 4)
    assert (~p.isnan()).nonzero().tolist() == [[0, 0], [0, 2], [2, 0], [2, 2]]
    assert torch.allclose(p[[0, 2]].nansum(1), torch.ones(2).double())


def test_a_full_gradient_step_keeps_to_the_schedule() -> None:
    """A guidance model of the second round, with a learning rate that falls tenfold."""
    how = {**FULL, "lr": 0.1, "lr_decay": 0.1, "guidance": "full_gradient"}
    ran = Watched({"name": "feddwa", **how}, TINY, NET, 2)
    for k, client in enumerate(CLIENTS):
        model, ahead = ran.up(1, "model", k), ran.up(1, "guidance", k)
        step = gradient(model, client)
        assert_same(ahead, {n: model[n] - 0.01 * step[n] for n in model}, 1e-12)
    assert methods.build({"name": "feddwa", **how}).revision == 2
    assert methods.build({"name": "feddwa", **how, "lr_decay": 1.0}).revision == 1
