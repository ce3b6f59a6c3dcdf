"""FedAS: alignment, Fisher traces and weights, every option against plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idiolect import methods
from idiolect.conformance.problem import network
from idiolect.core import tree
from idiolect.core.method import Server, Ups, cross_entropy
from idiolect.core.net import Net
from tests.conftest import ENGINES, ragged_federation, simulation
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
    assert_same,
    batches,
    combine,
    differ,
    features,
    federate,
    gradient,
    model_with,
    seeded,
    sgd,
    share,
    vector,
)
from tests.watched import Watched

FULL = {"lr": 0.2, "batch_size": "full", "epochs": 1, "align_lr": 0.3}
FIXED = {**FULL, "batch_size": 4, "order": "fixed"}


def aggregated(
    traces: Sequence[float], bases: Sequence[float], theta: float = 0.0, **options: object
) -> tuple[float, list[float]]:
    """The new one-number base, and the weights."""
    n = len(bases)
    method = methods.build({"name": "fedas", "personal_layers": "none", **options})
    net = Net(nn.Sequential(nn.Linear(1, 1, bias=False)).double())
    start = {"0.weight": torch.tensor([[theta]], dtype=torch.float64)}
    state = method.server_init(net, start, range(n))
    server = Server(state, net=net, clients=range(n), sizes=dict.fromkeys(range(n), 5))
    record = {
        "base": {"0.weight": torch.tensor(bases, dtype=torch.float64).reshape(n, 1, 1)},
        "trace": torch.tensor(traces, dtype=torch.float64),
    }
    ups = Ups(record, list(range(n)), torch.full((n,), 5.0).double(), [0] * n, 0)
    method.aggregate(server, ups)
    return server["base"]["0.weight"].item(), server.logs["aggregation_weight"].tolist()


# --- weights in closed form ---


def test_two_traces() -> None:
    base, weight = aggregated([3, 1], [1.0, -1.0])
    assert base == pytest.approx(0.5, abs=1e-12)
    assert weight == [0.75, 0.25]


def test_equation_8_as_printed_divides_by_m() -> None:
    assert aggregated([3, 1], [1.0, -1.0], literal_mean=True)[0] == pytest.approx(0.25, abs=1e-12)
    moved = aggregated([3, 1], [11.0, 9.0], theta=10.0, literal_mean=True)[0]
    assert moved == pytest.approx(10.25, abs=1e-12)


def test_softmax_and_minmax() -> None:
    _, soft = aggregated([3, 1, 2], [0.0] * 3, normalize="softmax")
    raw = [exp(3), exp(1), exp(2)]
    assert soft == pytest.approx([r / sum(raw) for r in raw], abs=1e-12)
    _, minmax = aggregated([3, 1, 2], [0.0] * 3, normalize="minmax")
    assert minmax == pytest.approx([2 / 3, 0.0, 1 / 3], abs=1e-12)


def test_minmax_as_printed_moves_by_weighted_updates() -> None:
    """Weights 1, 0, 1/2 do not sum to 1: the base moves by them from where it was."""
    base, weight = aggregated([3, 1, 2], [11.0, 7.0, 12.0], theta=10.0, normalize="minmax_printed")
    assert weight == pytest.approx([1, 0, 0.5], abs=1e-12)
    assert base == pytest.approx(10 + 1 + 0.5 * 2, abs=1e-12)
    options = {"normalize": "minmax_printed", "literal_mean": True}
    assert aggregated([3, 1, 2], [11.0, 7.0, 12.0], 10.0, **options)[0] == pytest.approx(10 + 2 / 3)
    assert aggregated([3], [11.0], 10.0, normalize="minmax_printed") == (11.0, [1.0])


def test_traces_that_say_nothing_weigh_alike() -> None:
    assert aggregated([0, 0], [1.0, 3.0]) == (2.0, [0.5, 0.5])
    assert aggregated([7, 7], [1.0, 3.0], normalize="minmax") == (2.0, [0.5, 0.5])


def test_scaling_all_losses_leaves_the_weights_alone() -> None:
    c = 3.0
    one, other = aggregated([3, 1], [1.0, -1.0]), aggregated([3 * c**2, c**2], [1.0, -1.0])
    assert one == other


# --- oracles on runs ---


def test_identical_clients_are_fedper_and_single_training() -> None:
    twins = federate(TWINS)
    ran = Watched({"name": "fedas", "align": False, **FULL}, twins, NET, 3)
    per = Watched({"name": "fedper", "lr": 0.2, "batch_size": "full"}, twins, NET, 3)
    alone = dict(START)
    for t in range(3):
        assert ran.logs(t)["aggregation_weight"].tolist() == [0.25] * 4
        alone = sgd(alone, TWINS[0], lr=0.2)
        for i in range(4):
            assert_same(ran.personal[t][i], tree.client(per.fits[t].trained, i), 1e-14)
            assert_same(ran.personal[t][i], alone, 1e-12)


def test_sample_targets_do_nothing_while_bases_agree() -> None:
    """In the first round a client's own base is the server's: loss 0, no move."""
    aligned, not_aligned = (
        Watched({"name": "fedas", "target": "sample", "align": a, **FULL}, TINY, NET, 2)
        for a in (True, False)
    )
    for i in range(4):
        assert_same(aligned.personal[0][i], not_aligned.personal[0][i], 0)
        assert differ(aligned.personal[1][i], not_aligned.personal[1][i])


def test_class_mean_targets_move_even_then() -> None:
    aligned, not_aligned = (
        Watched({"name": "fedas", "align": a, **FULL}, TINY, NET, 1) for a in (True, False)
    )
    assert differ(aligned.personal[0][0], not_aligned.personal[0][0])


def test_one_participant_gives_its_base() -> None:
    ran = Watched({"name": "fedas", **FULL}, TINY, NET, 1, schedule=[[2]])
    assert_same(ran.server[0]["base"], ran.up(0, "base", 0), 0)


def test_heads_and_absent_clients_are_untouched() -> None:
    ran = Watched({"name": "fedas", **FULL}, TINY, NET, 2, schedule=[[0, 1], [1, 3]])
    for t, away in ((1, (2, 3)), (2, (0, 2))):
        for i in away:
            assert_same(ran.personal[t - 1][i], ran.mine[t - 1][i]["model"], 0)
            assert_same(ran.mine[t][i]["model"], ran.mine[t - 1][i]["model"], 0)
        for k, i in enumerate(ran.rounds[t - 1].started):  # nor those who took part, afterwards
            assert_same(ran.mine[t][i]["model"], tree.client(ran.fits[t - 1].trained, k), 0)


def test_trace_of_one_batch_is_the_squared_full_gradient() -> None:
    ran = Watched({"name": "fedas", **FULL}, TINY, NET, 1)
    for i in range(4):
        g = vector(gradient(ran.personal[0][i], CLIENTS[i]))
        assert ran.up(0, "trace", i).item() == pytest.approx(float(g @ g), rel=1e-10)


def tripled(net: Net, params: State, x: Tensor, y: Tensor) -> Tensor:
    return 3 * cross_entropy(net, params, x, y)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("per_sample", [False, True])
def test_scaling_the_loss_scales_the_trace_by_its_square(engine: str, per_sample: bool) -> None:
    sim = simulation(methods.build("fedas"), TINY, NET, 1, engine=engine)
    params = tree.expand(START, 1)
    once, thrice = (
        sim.engine.local([1], 0).squared_grad(loss, params, batch_size=4, per_sample=per_sample)[0]
        for loss in (cross_entropy, tripled)
    )
    assert thrice.item() == pytest.approx(9 * once.item(), rel=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_class_means_of_whole_batches(engine: str) -> None:
    """Of 7 samples in batches of 3 the last is left out, in the order the batches are taken in."""
    y = torch.tensor([0, 1, 0, 1, 2, 0, 2])
    x = torch.arange(7).double()[:, None].expand(7, 3).contiguous()
    sim = simulation(methods.build("fedas"), federate([Client(x, y)]), NET, 1, engine=engine)
    local = sim.engine.local([0], 0)
    rows = local.rows(x[:, 0])

    def means(**batches: object) -> list[float]:
        return local.class_mean(rows, **batches)[0].tolist()

    assert means() == pytest.approx([7 / 3, 2, 5])
    assert means(batch_size=3, order="fixed") == pytest.approx([7 / 3, 2, 5])
    assert means(batch_size=3, order="fixed", drop_last=True) == pytest.approx([7 / 3, 2, 4])
    assert means(batch_size=3, order="class", drop_last=True) == pytest.approx([7 / 3, 2, 4])
    assert means(batch_size=4, order="fixed", drop_last=True) == pytest.approx([1, 2, 0])
    assert means(batch_size=9, order="fixed", drop_last=True) == pytest.approx([7 / 3, 2, 5])


# --- every option against a plain reference ---


@dataclass(frozen=True)
class Reference:
    """FedAS with Python loops over clients, batches and classes."""

    lr: float = 0.2
    lr_decay: float = 1.0
    epochs: int = 1
    batch: int | None = None
    drop: bool = False
    align: bool = True
    align_lr: float = 0.3
    align_epochs: int = 1
    align_batch: int | None = -1  # the same as for training
    align_weight: float | None = None  # of alignment in the loss of training
    align_to: str = "local"
    per_sample_target: bool = False
    synchronize: bool = True
    trace: str = "batches"
    normalize: str = "proportional"
    literal: bool = False
    own: tuple[str, ...] = HEAD

    def run(self, who: list[list[int]]) -> tuple[list[State], list[list[State]], list[list[float]]]:
        base = {n: v for n, v in START.items() if n not in self.own}
        models = [dict(START) for _ in CLIENTS]
        bases, personal, weights = [], [], []
        for t, ids in enumerate(who):
            new, traces = {}, []
            for i in ids:
                model = base | {n: models[i][n] for n in self.own}
                rows = batches(len(CLIENTS[i]), self.batch, self.epochs, self.drop)
                if self.align_weight is not None:
                    new[i] = self.trained_and_aligned(model, models[i], CLIENTS[i], rows)
                else:
                    if self.align:
                        model = self.aligned(model, models[i], CLIENTS[i])
                    new[i] = sgd(model, CLIENTS[i], rows, lr=self.lr * self.lr_decay**t)
                traces.append(self.fisher(new[i], CLIENTS[i]))
            weight = self.weight(traces, [CLIENTS[i] for i in ids])
            mixed = combine(weight, [{n: new[i][n] for n in base} for i in ids])
            if self.normalize == "minmax_printed":
                mixed = {n: mixed[n] + (1 - sum(weight)) * base[n] for n in base}
            if self.literal:
                mixed = {n: base[n] + (mixed[n] - base[n]) / len(ids) for n in base}
            base = mixed
            models = [new.get(i, m) for i, m in enumerate(models)]
            bases.append(base)
            personal.append(models)
            weights.append(weight)
        return bases, personal, weights

    def trained_and_aligned(
        self, state: State, previous: State, client: Client, rows: list[Tensor]
    ) -> State:
        target = features(previous if self.align_to == "local" else state, client)
        if not self.per_sample_target:
            means = {int(c): target[client.y == c].mean(0) for c in client.y.unique()}
            target = torch.stack([means[int(c)] for c in client.y])
        model = model_with(state)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.lr)
        for batch in rows:
            optimizer.zero_grad()
            h, y = model.body(client.x[batch]), client.y[batch]
            loss = F.cross_entropy(model.head(h), y)
            (loss + self.align_weight * self.gap(h, y, target[batch])).backward()
            optimizer.step()
        return {n: v.detach().clone() for n, v in model.state_dict().items()}

    def gap(self, h: Tensor, y: Tensor, target: Tensor) -> Tensor:
        if self.per_sample_target:
            return (h - target).square().sum(1).mean()
        return torch.stack([F.mse_loss(h[y == c], target[y == c]) for c in y.unique()]).sum()

    def aligned(self, state: State, previous: State, client: Client) -> State:
        target = features(previous if self.align_to == "local" else state, client)
        size = self.batch if self.align_batch == -1 else self.align_batch
        seen = torch.cat(batches(len(client), size, 1, self.drop))  # whole batches, if `drop`
        if not self.per_sample_target:
            h, y = target[seen], client.y[seen]
            means = {int(c): h[y == c].mean(0) for c in y.unique()}
            target = torch.stack([means.get(int(c), torch.zeros_like(h[0])) for c in client.y])
        model = model_with(state)
        moving = [p for n, p in model.named_parameters() if n not in self.own and n not in HEAD]
        optimizer = torch.optim.SGD(moving, lr=self.align_lr)
        for batch in batches(len(client), size, self.align_epochs, self.drop):
            optimizer.zero_grad()
            self.gap(model.body(client.x[batch]), client.y[batch], target[batch]).backward()
            optimizer.step()
        return {n: v.detach().clone() for n, v in model.state_dict().items()}

    def fisher(self, state: State, client: Client) -> float:
        if self.trace.startswith("whole_data"):
            g = vector(gradient(state, client))
            return float(g @ g) * (len(client) ** 2 if self.trace == "whole_data" else 1)
        size = 1 if self.trace == "per_sample" else self.batch
        rows = batches(len(client), size, 1, self.drop)
        squares = [float(vector(gradient(state, client, b)).square().sum()) for b in rows]
        return sum(squares) / (len(rows) if self.trace == "mean_over_batches" else 1)

    def weight(self, traces: list[float], clients: list[Client]) -> list[float]:
        if not self.synchronize:
            return share(clients)
        if self.normalize == "softmax":
            traces = [exp(v) for v in traces]
        elif self.normalize.startswith("minmax"):
            traces = [v - min(traces) for v in traces]
        if self.normalize == "minmax_printed":
            return [v / max(traces) for v in traces]
        return [v / sum(traces) for v in traces]


EVERYONE = [[0, 1, 2, 3]] * 3
OWN_HALF = tuple(n for n in START if not n.startswith("body.0"))
OPTIONS = {
    "default": ({}, Reference()),
    "epochs_and_batches": ({**FIXED, "epochs": 2}, Reference(epochs=2, batch=4)),
    "drop_last": ({**FIXED, "drop_last": True}, Reference(batch=4, drop=True)),
    "drop_last_align_batch": (
        {**FIXED, "drop_last": True, "align_batch_size": 3},
        Reference(batch=4, drop=True, align_batch=3),
    ),
    "no_alignment": ({"align": False}, Reference(align=False)),
    "align_lr": ({"align_lr": 0.05}, Reference(align_lr=0.05)),
    "align_epochs": ({**FIXED, "align_epochs": 3}, Reference(batch=4, align_epochs=3)),
    "align_batch": ({**FIXED, "align_batch_size": 2}, Reference(batch=4, align_batch=2)),
    "align_full": ({**FIXED, "align_batch_size": "full"}, Reference(batch=4, align_batch=None)),
    "sample_target": (
        {**FIXED, "target": "sample", "align_lr": 0.05},
        Reference(batch=4, per_sample_target=True, align_lr=0.05),
    ),
    "no_synchronization": ({"synchronize": False}, Reference(synchronize=False)),
    "trace_mean": (
        {**FIXED, "trace": "mean_over_batches"},
        Reference(batch=4, trace="mean_over_batches"),
    ),
    "trace_per_sample": ({**FIXED, "trace": "per_sample"}, Reference(batch=4, trace="per_sample")),
    "softmax": ({"normalize": "softmax"}, Reference(normalize="softmax")),
    "minmax": ({"normalize": "minmax"}, Reference(normalize="minmax")),
    "minmax_printed": ({"normalize": "minmax_printed"}, Reference(normalize="minmax_printed")),
    "trace_whole": ({**FIXED, "trace": "whole_data"}, Reference(batch=4, trace="whole_data")),
    "trace_whole_mean": (
        {**FIXED, "trace": "whole_data_mean"},
        Reference(batch=4, trace="whole_data_mean"),
    ),
    "global": ({**FIXED, "align_to": "global"}, Reference(batch=4, align_to="global")),
    "parallel": (
        {**FIXED, "align_manner": "parallel", "align_weight": 0.4},
        Reference(batch=4, align_weight=0.4),
    ),
    "parallel_global": (
        {**FIXED, "align_manner": "parallel", "align_to": "global"},
        Reference(batch=4, align_weight=1.0, align_to="global"),
    ),
    "parallel_sample": (
        {**FIXED, "align_manner": "parallel", "target": "sample", "align_weight": 0.1},
        Reference(batch=4, align_weight=0.1, per_sample_target=True),
    ),
    "literal_mean": ({"literal_mean": True}, Reference(literal=True)),
    "lr_decay": ({"lr_decay": 0.5}, Reference(lr_decay=0.5)),
    "other_decoupling": ({"personal_layers": "body.2.*,head.*"}, Reference(own=OWN_HALF)),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", OPTIONS)
def test_option(case: str, engine: str) -> None:
    options, reference = OPTIONS[case]
    ran = Watched({"name": "fedas", **FULL, **options}, TINY, NET, 3, engine=engine)
    bases, personal, weights = reference.run(EVERYONE)
    for t in range(3):
        logged = ran.logs(t)["aggregation_weight"].tolist()
        assert logged == pytest.approx(weights[t], abs=1e-10)
        assert set(ran.server[t]["base"]) == set(bases[t])
        assert_same(ran.server[t]["base"], bases[t], what=f"base {t}")
        for i in range(4):
            assert_same(ran.personal[t][i], personal[t][i], what=f"round {t} client {i}")


def test_options_really_change_the_result() -> None:
    """No two of them give the same first layer."""
    first = [
        (case, reference.run(EVERYONE)[0][-1]["body.0.weight"])
        for case, (_, reference) in OPTIONS.items()
    ]
    for k, (a, one) in enumerate(first):
        for b, other in first[k + 1 :]:
            assert float((one - other).abs().max()) > 1e-8, (a, b)


@pytest.mark.parametrize(
    "case",
    ["default", "no_synchronization", "literal_mean", "minmax", "minmax_printed", "parallel"],
)
def test_partial_participation(case: str) -> None:
    who = [[0, 1, 3], [1, 2], [0, 2, 3]]
    options, reference = OPTIONS[case]
    ran = Watched({"name": "fedas", **FULL, **options}, TINY, NET, 3, schedule=who)
    bases, personal, weights = reference.run(who)
    for t in range(3):
        assert ran.shown(t, "aggregation_weight").tolist() == pytest.approx(weights[t], abs=1e-10)
        assert_same(ran.server[t]["base"], bases[t])
        for i in range(4):
            assert_same(ran.personal[t][i], personal[t][i], what=f"round {t} client {i}")


def test_without_both_switches_it_is_fedper() -> None:
    plain = {"name": "fedas", "align": False, "synchronize": False}
    settings = {"lr": 0.2, "batch_size": 4, "epochs": 2}
    ran = Watched({**plain, **settings}, TINY, NET, 3)
    per = Watched({"name": "fedper", **settings}, TINY, NET, 3)
    assert_same(ran.server[-1]["base"], per.server[-1]["base"], 0)
    assert "trace" not in ran.fits[0].up


def test_personal_norm_layers() -> None:
    """Decoupling by normalisation layers: their weights and statistics stay."""
    ran = Watched({"name": "fedas", "personal_layers": "norm", **FULL}, TINY, seeded(NormNet), 2)
    shared = set(ran.server[-1]["base"])
    assert shared == {"body.0.weight", "body.0.bias", "head.weight", "head.bias"}
    assert set(ran.fits[1].up["base"]) == shared


def test_traffic_is_two_bases_and_a_number() -> None:
    ran = Watched({"name": "fedas", **FULL}, TINY, NET, 1)
    size = 8 * sum(START[n].numel() for n in BODY)
    assert ran.rounds[0].bytes_down == 4 * size
    assert ran.rounds[0].bytes_up == 4 * (size + 8)


def test_traces_per_sample_see_every_sample_in_both_engines() -> None:
    """`drop_last` is about mini-batches; the stack goes through samples in pieces of its own."""
    how = {"name": "fedas", "trace": "per_sample", "drop_last": True, "batch_size": 8}
    method, larger = methods.build(how), ragged_federation((24, 30))
    runs = (simulation(method, larger, network(), 1, engine=e) for e in ENGINES)
    one, other = (sim.step().logs["fisher_trace"] for sim in runs)
    torch.testing.assert_close(one, other, rtol=1e-9, atol=0)
