"""The two engines on every kind of model and data: they agree, and agree with plain PyTorch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idiolect import methods
from idiolect.core import tree
from idiolect.core.local import Local, Rows
from idiolect.core.method import cross_entropy
from idiolect.core.net import Net
from idiolect.core.tree import Tree
from idiolect.data import Federation
from idiolect.engine import cuda_graphs as graphs
from idiolect.engine.stacked import StackedEngine
from idiolect.engine.train import Training
from tests.conftest import ENGINES, SmallNet, ragged_federation, run, simulation
from tests.methods.plain import (
    CLIENTS,
    NET,
    START,
    TINY,
    NormNet,
    assert_same,
    batches,
    differ,
    draw_clients,
    features,
    federate,
    gradient,
    loss,
    model_with,
    seeded,
    sgd,
    vector,
)

RAGGED = ragged_federation()
LOCAL = {"name": "local", "lr": 0.05, "batch_size": 8, "epochs": 2}


def local_of(engine: str, ids: list[int], net: nn.Module = NET, round: int = 0) -> Local:
    return simulation(methods.build("local"), TINY, net, 1, engine=engine).engine.local(ids, round)


def stacked(state: Tree, k: int) -> Tree:
    return {n: v.expand(k, *v.shape).clone() for n, v in state.items()}


def both(
    net: nn.Module, federation: Federation, settings: dict[str, Any], rounds: int = 2, **more: Any
) -> tuple[Any, Any]:
    method = methods.build(settings)
    return tuple(run(method, federation, net, rounds, engine=e, **more) for e in ENGINES)  # type: ignore[return-value]


def assert_agree(one: Any, other: Any, tol: float = 1e-9) -> None:
    for i in range(one.federation.n_clients):
        a, b = one.personal_model(i), other.personal_model(i)
        for n, v in a.items():
            if v.is_floating_point():
                gap = float((v - b[n]).abs().max())
                assert gap <= tol * max(1.0, float(v.abs().max())), f"client {i} {n}: {gap:.1e}"
    for name, column in one.scores.columns.items():
        assert np.allclose(column, other.scores.columns[name], atol=10 * tol, equal_nan=True), name


# --- models ---


class Grouped(nn.Module):
    """GroupNorm, strided and padded convolutions, one of them grouped."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1),
            nn.GroupNorm(2, 4),
            nn.ReLU(),
            nn.Conv2d(4, 8, 3, groups=2, padding="same"),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


class Tokens(nn.Module):
    """An embedding; its inputs are whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.embed(x.long()).mean(1))
        return out


class Scaled(nn.Module):
    """No attribute called head; a parameter of its own that is a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.mix = nn.Linear(12, 12)
        self.out = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.squeeze(1)
        attention = torch.softmax(self.scale * self.mix(rows) @ rows.mT, -1)
        out: Tensor = self.out((attention @ rows).mean(1))
        return out


class Attention(nn.Module):
    """PyTorch's own attention, which takes a fast path of its own outside training."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(12, 2, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.squeeze(1)
        out: Tensor = self.head(self.mix(rows, rows, rows)[0].mean(1))
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 6, batch_first=True)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(x.squeeze(1))[0][:, -1])
        return out


class Branching(nn.Module):
    """What it computes depends on the numbers it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        if float(h.detach().sum()) > 0:
            h = h * 2
        out: Tensor = self.head(torch.tanh(h))
        return out


@pytest.mark.parametrize(
    "kind",
    [
        SmallNet,
        Grouped,
        Scaled,
        Attention,
    ],
)
def test_engines_agree_on(kind: type[nn.Module]) -> None:
    assert_agree(*both(seeded(kind), RAGGED, LOCAL))


def test_scalar_parameters_are_averaged() -> None:
    one, other = both(seeded(Scaled), RAGGED, {**LOCAL, "name": "fedavg"})
    assert one.server["model"]["scale"].shape == ()
    assert_agree(one, other)


def test_embeddings_of_whole_numbers() -> None:
    rng = np.random.default_rng(0)
    parts = [
        {
            f"{v}_{p}": rng.integers(0, 11, (n, 4)) if v == "x" else rng.integers(0, 3, n)
            for v in "xy"
            for p in ("train", "test")
        }
        for n in (6, 9, 5)
    ]
    federation = Federation.from_arrays(parts, classes=3)
    net = seeded(Tokens)
    one, other = both(net, federation, LOCAL)
    assert_agree(one, other)
    unused = torch.ones(11, dtype=torch.bool)
    unused[torch.as_tensor(parts[0]["x_train"]).flatten()] = False
    rows = one.personal_model(0)["embed.weight"] - net.state_dict()["embed.weight"]
    assert float(rows[unused].abs().max()) == 0
    assert float(rows[~unused].abs().min(0).values.max()) > 0


# --- BatchNorm ---


@pytest.mark.parametrize("engine", ENGINES)
def test_batchnorm_with_one_sample_left_over(engine: str) -> None:
    """9 samples in batches of 4: the ninth joins the second batch, for it has no variance."""
    net = seeded(NormNet)
    method = {"name": "local", "lr": 0.2, "batch_size": 4, "order": "fixed", "epochs": 2}
    sim = run(methods.build(method), TINY, net, 1, engine=engine)
    assert len(CLIENTS[1]) == 9
    for i, rows in (
        (0, [(0, 4), (4, 6)]),
        (1, [(0, 4), (4, 9)]),
        (2, [(0, 5)]),
        (3, [(0, 4), (4, 8)]),
    ):
        model = model_with(net.state_dict(), NormNet).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        for a, b in rows * 2:
            optimizer.zero_grad()
            F.cross_entropy(model(CLIENTS[i].x[a:b]), CLIENTS[i].y[a:b]).backward()
            optimizer.step()
        expected = {n: v for n, v in model.state_dict().items() if "tracked" not in n}
        assert_same(sim.personal_model(i), expected, 1e-10, f"client {i}")


def test_batchnorm_engines_agree() -> None:
    assert_agree(*both(seeded(lambda: SmallNet(norm=True)), RAGGED, LOCAL), tol=1e-8)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ENGINES)
def test_exported_batchnorm_model_predicts_the_same(engine: str) -> None:
    """The plain module with the exported state gives the accuracy the run reported."""
    net = seeded(lambda: SmallNet(norm=True))  # type: ignore[arg-type]
    sim = run(methods.build(LOCAL), RAGGED, net, 1, engine=engine)
    net = seeded(lambda: SmallNet(norm=True))  # type: ignore[arg-type]
    for i in range(RAGGED.n_clients):
        net.load_state_dict(sim.personal_model(i))
        at = RAGGED.test[i]
        hits = (net.eval()(RAGGED.x[at]).argmax(1) == RAGGED.y[at]).double().mean()
        assert float(hits) == pytest.approx(sim.scores.columns["accuracy_before"][i])


# --- dropout ---


@pytest.mark.parametrize("engine", ENGINES)
def test_dropout_repeats_within_an_engine(engine: str) -> None:
    net = seeded(lambda: SmallNet(drop=0.5))  # type: ignore[arg-type]
    torch.manual_seed(1)
    first = run(methods.build(LOCAL), RAGGED, net, 2, engine=engine)
    torch.manual_seed(2)
    again = run(methods.build(LOCAL), RAGGED, net, 2, engine=engine)
    other = run(methods.build(LOCAL), RAGGED, net, 2, engine=engine, seed=1)
    for i in range(RAGGED.n_clients):
        assert_same(again.personal_model(i), first.personal_model(i), 0)
        assert differ(other.personal_model(i), first.personal_model(i))


@pytest.mark.parametrize("engine", ENGINES)
def test_dropout_is_on_in_training_and_off_in_tests(engine: str) -> None:
    fixed = {**LOCAL, "order": "fixed", "batch_size": "full", "epochs": 1}
    nets = [seeded(lambda p=p: SmallNet(drop=p)) for p in (0.5, 1e-12)]  # type: ignore[arg-type, misc]
    dropped, whole = (run(methods.build(fixed), RAGGED, n, 1, engine=engine) for n in nets)
    assert differ(dropped.personal_model(0), whole.personal_model(0))
    one, two = (dropped.engine.evaluate(dropped._personal([0]), [0], "test") for _ in range(2))
    assert torch.equal(one[1], two[1])


@pytest.mark.parametrize("engine", ENGINES)
def test_dropout_continues_after_a_resume(engine: str) -> None:
    net = seeded(lambda: SmallNet(drop=0.5))  # type: ignore[arg-type]
    whole = simulation(methods.build(LOCAL), RAGGED, net, 2, engine=engine)
    whole.step()
    tensors, meta = whole.state()
    whole.step()
    second = simulation(methods.build(LOCAL), RAGGED, net, 2, engine=engine)
    second.restore(tensors, meta)
    second.step()
    for i in range(RAGGED.n_clients):
        assert_same(second.personal_model(i), whole.personal_model(i), 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_dropout_leaves_the_global_generator_alone(engine: str) -> None:
    net = seeded(lambda: SmallNet(drop=0.5))  # type: ignore[arg-type]
    before = torch.get_rng_state()
    run(methods.build(LOCAL), RAGGED, net, 1, engine=engine)
    assert torch.equal(torch.get_rng_state(), before)


# --- models that cannot be stacked ---


@pytest.mark.parametrize(
    ("kind", "federation"), [(Recurrent, RAGGED), (Branching, TINY)], ids=["lstm", "branching"]
)
def test_what_cannot_be_stacked_falls_back_with_one_warning(
    kind: type[nn.Module], federation: Federation
) -> None:
    net = seeded(kind)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fallen = run(methods.build(LOCAL), federation, net, 2, engine="stacked")
    messages = [str(w.message) for w in seen]
    assert len(messages) == 1, messages
    assert "cannot be stacked" in messages[0]
    assert "loop engine" in messages[0]
    assert fallen.engine.name == "loop"
    plain = run(methods.build(LOCAL), federation, net, 2, engine="loop")
    for i in range(federation.n_clients):
        assert_same(fallen.personal_model(i), plain.personal_model(i), 0)


def test_what_can_be_stacked_is_stacked_without_a_word() -> None:
    for kind in (SmallNet, Grouped, Scaled, lambda: SmallNet(norm=True, drop=0.2)):
        sim = simulation(methods.build("local"), RAGGED, seeded(kind), 1)  # type: ignore[arg-type]
        assert sim.engine.name == "stacked"


# --- data ---


def test_bytes_are_scaled_and_normalised_per_channel() -> None:
    """uint8 with mean and std is the same data as floats normalised by hand."""
    rng = np.random.default_rng(0)
    mean, std = np.array([0.4, 0.5]), np.array([0.2, 0.3])
    raw, by_hand = [], []
    for n in (7, 10):
        x = {p: rng.integers(0, 256, (n, 2, 12, 12), dtype=np.uint8) for p in ("train", "test")}
        y = {p: rng.integers(0, 5, n) for p in ("train", "test")}
        labels = {f"y_{p}": y[p] for p in y}
        raw.append(labels | {f"x_{p}": v for p, v in x.items()})
        by_hand.append(
            labels
            | {f"x_{p}": (v / 255 - mean[:, None, None]) / std[:, None, None] for p, v in x.items()}
        )
    net = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(288, 6), nn.Tanh(), nn.Linear(6, 5)))  # type: ignore[arg-type]
    given = Federation.from_arrays(raw, classes=5, mean=mean, std=std)
    plain = Federation.from_arrays(by_hand, classes=5)
    for engine in ENGINES:
        a, b = (run(methods.build(LOCAL), f, net, 1, engine=engine) for f in (given, plain))
        assert_agree(a, b)


def test_single_precision() -> None:
    net = seeded(lambda: SmallNet(smooth=True)).float()  # type: ignore[arg-type]
    one, other = both(net, RAGGED, LOCAL, dtype="float32")
    assert one.personal_model(0)["head.weight"].dtype == torch.float32
    assert_agree(one, other, 1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": "full"},
        {"batch_size": 100},
        {"batch_size": 4},
        {"batch_size": 4, "drop_last": True},
        {"batch_size": 5, "drop_last": True, "epochs": 3},
        {"batch_size": 1},
    ],
    ids=str,
)
def test_batches_are_those_of_plain_torch(settings: dict[str, Any], engine: str) -> None:
    """Clients of 6, 9, 5 and 8 samples; a client smaller than one batch keeps its only batch."""
    method = methods.build({"name": "local", "lr": 0.2, "order": "fixed", **settings})
    sim = run(method, TINY, NET, 1, engine=engine)
    size = None if settings["batch_size"] == "full" else settings["batch_size"]
    seen = 0
    for i, client in enumerate(CLIENTS):
        drop = settings.get("drop_last", False)
        rows = batches(len(client), size, settings.get("epochs", 1), drop)
        seen += sum(len(b) for b in rows)
        assert_same(sim.personal_model(i), sgd(START, client, rows, lr=0.2), what=f"client {i}")
    again = simulation(method, TINY, NET, 1, engine=engine)
    assert int(np.sum(again.step().samples)) == seen


@pytest.mark.parametrize("engine", ENGINES)
def test_class_order(engine: str) -> None:
    settings = {"name": "local", "lr": 0.2, "order": "class", "batch_size": 4}
    sim = run(methods.build(settings), TINY, NET, 1, engine=engine)
    for i, client in enumerate(CLIENTS):
        order = client.y.argsort(stable=True)
        rows = [order[b] for b in batches(len(client), 4)]
        assert_same(sim.personal_model(i), sgd(START, client, rows, lr=0.2), what=f"client {i}")


def test_engines_agree_on_very_different_sizes() -> None:
    federation = federate(draw_clients((2, 40, 3, 600, 17, 1100)))
    assert_agree(*both(NET, federation, {**LOCAL, "batch_size": "full"}, rounds=1))
    assert_agree(*both(NET, federation, {**LOCAL, "batch_size": 16, "epochs": 1}, rounds=1))


@pytest.mark.parametrize("engine", ENGINES)
def test_one_sample_is_enough(engine: str) -> None:
    federation = federate(draw_clients((1, 4)))
    sim = run(methods.build(LOCAL), federation, NET, 1, engine=engine)
    assert bool(torch.isfinite(sim.personal_model(0)["head.weight"]).all())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_single_client(engine: str) -> None:
    federation = federate(CLIENTS[:1])
    method = methods.build({"name": "fedavg", "lr": 0.2, "batch_size": "full"})
    sim = run(method, federation, NET, 2, engine=engine)
    expected = sgd(sgd(START, CLIENTS[0], lr=0.2), CLIENTS[0], lr=0.2)
    assert_same(sim.personal_model(0), expected)


def test_order_and_company_of_clients_do_not_matter() -> None:
    """A client's training is its own: alone, or in a stack with others in any order."""
    settings = {"lr": 0.1, "batch_size": 4, "epochs": 2}
    together = local_of("stacked", [0, 1, 2, 3]).sgd(cross_entropy, stacked(START, 4), **settings)
    for ids in ([2], [3, 1], [1, 3, 0]):
        some = local_of("stacked", ids).sgd(cross_entropy, stacked(START, len(ids)), **settings)
        for k, i in enumerate(ids):
            assert_same(tree.client(some.params, k), tree.client(together.params, i), 1e-13)


def test_shuffles_differ_by_client_round_and_purpose() -> None:
    settings = {"lr": 0.1, "batch_size": 2}

    def trained(i: int = 1, round: int = 0, purpose: str = "train") -> Tree:
        local = local_of("loop", [i], round=round)
        return tree.client(
            local.sgd(cross_entropy, stacked(START, 1), purpose=purpose, **settings).params, 0
        )

    assert_same(trained(), trained(), 0)
    assert differ(trained(), trained(round=1))
    assert differ(trained(), trained(purpose="other"))


# --- what a client can do with its data ---


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("training", [False, True])
def test_grad(engine: str, training: bool) -> None:
    ids = [1] if engine == "loop" else [3, 1, 2]
    g, value, _ = local_of(engine, ids).grad(
        cross_entropy, stacked(START, len(ids)), training=training
    )
    for k, i in enumerate(ids):
        assert_same(tree.client(g, k), gradient(START, CLIENTS[i]), 1e-13)
        assert value[k].item() == pytest.approx(loss(START, CLIENTS[i]), rel=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_grad_of_some_leaves(engine: str) -> None:
    g, _, _ = local_of(engine, [1]).grad(cross_entropy, stacked(START, 1), train=("head.bias",))
    assert list(g) == ["head.bias"]
    assert_same(tree.client(g, 0), {"head.bias": gradient(START, CLIENTS[1])["head.bias"]}, 1e-13)


class Spare(nn.Module):
    """Has a layer that its forward never uses."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(2, 2)
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        return out


@pytest.mark.parametrize("engine", ENGINES)
def test_layers_that_are_never_used_stay(engine: str) -> None:
    net = seeded(Spare)
    params = stacked(dict(net.state_dict()), 1)
    local = local_of(engine, [1], net)
    g, _, _ = local.grad(cross_entropy, params)
    assert float(g["spare.weight"].abs().max()) == 0
    assert float(g["head.weight"].abs().max()) > 0
    moved = local.sgd(cross_entropy, params, lr=0.1, batch_size=4, weight_decay=0.5).params
    assert torch.equal(moved["spare.weight"], params["spare.weight"])


@pytest.mark.parametrize("engine", ENGINES)
def test_sgd_of_some_leaves(engine: str) -> None:
    moved = (
        local_of(engine, [1])
        .sgd(cross_entropy, stacked(START, 1), lr=0.2, batch_size="full", train=("head.bias",))
        .params
    )
    expected = sgd(START, CLIENTS[1], lr=0.2, only=("head.bias",))
    assert_same(tree.client(moved, 0), expected, 1e-13)


@pytest.mark.parametrize("engine", ENGINES)
def test_step_size_per_client(engine: str) -> None:
    ids = [2] if engine == "loop" else [2, 0, 3]
    rates = torch.tensor([0.3, 0.1, 0.0][: len(ids)], dtype=torch.float64)
    moved = (
        local_of(engine, ids)
        .sgd(cross_entropy, stacked(START, len(ids)), lr=rates, batch_size="full")
        .params
    )
    for k, i in enumerate(ids):
        assert_same(tree.client(moved, k), sgd(START, CLIENTS[i], lr=float(rates[k])), 1e-13)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("per_sample", [False, True])
def test_squared_grad(engine: str, per_sample: bool) -> None:
    ids = [1] if engine == "loop" else [3, 1, 2]
    total, count = local_of(engine, ids).squared_grad(
        cross_entropy, stacked(START, len(ids)), batch_size=4, per_sample=per_sample
    )
    for k, i in enumerate(ids):
        rows = batches(len(CLIENTS[i]), 1 if per_sample else 4)
        squares = [float(vector(gradient(START, CLIENTS[i], b)).square().sum()) for b in rows]
        assert total[k].item() == pytest.approx(sum(squares), rel=1e-12)
        assert count[k].item() == len(rows)


def body(net: Net, params: Tree, x: Tensor, y: Tensor) -> Tensor:
    return net.features(params, x)


@pytest.mark.parametrize("engine", ENGINES)
def test_forward_and_class_mean(engine: str) -> None:
    ids = [1] if engine == "loop" else [3, 1, 2]
    local = local_of(engine, ids)
    rows = local.forward(body, stacked(START, len(ids)))
    expected = [features(START, CLIENTS[i]) for i in ids]
    assert torch.allclose(rows.values, torch.cat(expected), atol=1e-13)
    means = local.class_mean(rows)
    for k, i in enumerate(ids):
        for c in range(3):
            mine = expected[k][CLIENTS[i].y == c]
            mean = mine.mean(0) if len(mine) else torch.zeros(4)
            assert torch.allclose(means[k, c], mean.double(), atol=1e-13)
    assert local.counts.tolist() == [
        [int((CLIENTS[i].y == c).sum()) for c in range(3)] for i in ids
    ]
    assert local.sizes.tolist() == [len(CLIENTS[i]) for i in ids]


def weighted(net: Net, params: Tree, x: Tensor, y: Tensor, w: Tensor, pull: Tree) -> Tensor:
    """A loss with a value per sample, and a tree per client."""
    far = (params["head.bias"] - pull["b"]).square().sum()
    return w * F.cross_entropy(net(params, x), y, reduction="none") + far


@pytest.mark.parametrize("engine", ENGINES)
def test_extra_arguments(engine: str) -> None:
    ids = [1] if engine == "loop" else [3, 1, 2]
    w = [torch.linspace(0.5, 2, len(CLIENTS[i]), dtype=torch.float64) for i in ids]
    pull = torch.arange(3.0 * len(ids), dtype=torch.float64).reshape(len(ids), 3)
    moved = (
        local_of(engine, ids)
        .sgd(
            weighted,
            stacked(START, len(ids)),
            lr=0.1,
            batch_size=4,
            order="fixed",
            extra=(Rows(torch.cat(w)), {"b": pull}),
        )
        .params
    )
    for k, i in enumerate(ids):
        client = CLIENTS[i]
        model = model_with(START)
        for b in batches(len(client), 4):
            model.zero_grad()
            each = F.cross_entropy(model(client.x[b]), client.y[b], reduction="none")
            far = (model.head.bias - pull[k]).square().sum()
            ((w[k][b] * each).mean() + far).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
        assert_same(tree.client(moved, k), dict(model.state_dict()), 1e-13)


def pairwise(net: Net, params: Tree, x: Tensor, y: Tensor) -> Tensor:
    """Ties the samples of a batch together."""
    h = net(params, x)
    return (h[:, None] - h[None, :]).square().mean()


@pytest.mark.parametrize("engine", ENGINES)
def test_coupled_loss(engine: str) -> None:
    ids = [1] if engine == "loop" else [3, 1, 2]
    moved = (
        local_of(engine, ids)
        .sgd(pairwise, stacked(START, len(ids)), lr=0.1, batch_size=4, order="fixed", coupled=True)
        .params
    )
    for k, i in enumerate(ids):
        model = model_with(START)
        for b in batches(len(CLIENTS[i]), 4):
            model.zero_grad()
            h = model(CLIENTS[i].x[b])
            (h[:, None] - h[None, :]).square().mean().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
        assert_same(tree.client(moved, k), dict(model.state_dict()), 1e-13)


def by_class(net: Net, params: Tree, x: Tensor, y: Tensor) -> Tensor:
    """Every class of the batch counts the same; filling does not count."""
    each = F.cross_entropy(net(params, x), y, reduction="none", ignore_index=-1)
    same = (y[:, None] == y[None, :]).sum(1)
    return (each / same).sum()


@pytest.mark.parametrize("captured", [False, True])
def test_coupled_loss_that_knows_filling(captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of `coupled=True` in fewer steps."""
    ids, taken = [3, 1, 2, 0], []
    how = {"lr": 0.1, "batch_size": 4, "epochs": 2}
    true = local_of("stacked", ids).sgd(by_class, stacked(START, 4), coupled=True, **how).params
    step = Training.step

    def counted(self: Training, *args: Any) -> None:
        taken.append(args[0].number)
        step(self, *args)

    monkeypatch.setattr(Training, "step", counted)
    monkeypatch.setattr(graphs, "MIN_STEPS_TO_CAPTURE", 1)
    local = local_of("stacked", ids)
    if captured:
        local.captured_steps = graphs.CapturedSteps(local.samples)  # type: ignore[attr-defined]
    taken.clear()  # a first try whether the model can be stacked
    filled = local.sgd(by_class, stacked(START, 4), coupled="filled", **how).params
    assert_same(filled, true, 1e-13)
    assert len(taken) == 2 * -(-max(len(CLIENTS[i]) for i in ids) // 4)
    for k, i in enumerate(ids):
        alone = local_of("loop", [i]).sgd(by_class, stacked(START, 1), coupled="filled", **how)
        assert_same(tree.client(filled, k), tree.client(alone.params, 0), 1e-13)


def scalar(net: Net, params: Tree, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net(params, x), y)


def matrix(net: Net, params: Tree, x: Tensor, y: Tensor) -> Tensor:
    return net(params, x).square()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("wrong", "coupled"), [(scalar, False), (matrix, False), (cross_entropy, True)]
)
def test_a_loss_of_the_wrong_shape(wrong: Any, coupled: bool, engine: str) -> None:
    with pytest.raises(TypeError, match="one value per sample, or a scalar"):
        local_of(engine, [1]).sgd(wrong, stacked(START, 1), lr=0.1, batch_size=4, coupled=coupled)


@pytest.mark.parametrize("engine", ENGINES)
def test_uniform_is_keyed_by_client(engine: str) -> None:
    one = local_of(engine, [2]).uniform((3,), "here")
    if engine == "stacked":
        assert torch.equal(local_of(engine, [0, 2]).uniform((3,), "here")[1], one[0])
    assert not torch.equal(local_of(engine, [1]).uniform((3,), "here"), one)
    assert not torch.equal(local_of(engine, [2]).uniform((3,), "there"), one)
    assert torch.equal(local_of("loop", [2]).uniform((3,), "here"), one)


# --- evaluation ---


@pytest.mark.parametrize("engine", ENGINES)
def test_evaluation_is_that_of_plain_torch(engine: str) -> None:
    net = seeded(SmallNet)
    sim = run(methods.build(LOCAL), RAGGED, net, 1, engine=engine)
    for i in range(RAGGED.n_clients):
        net.load_state_dict(sim.personal_model(i))
        at = RAGGED.test[i]
        with torch.no_grad():
            logits = net(RAGGED.x[at])
        hits = (logits.argmax(1) == RAGGED.y[at]).double().mean()
        assert sim.scores.columns["accuracy_before"][i] == pytest.approx(float(hits))
        value = F.cross_entropy(logits, RAGGED.y[at])
        assert sim.scores.columns["loss_before"][i] == pytest.approx(float(value), rel=1e-10)


@pytest.mark.parametrize("name", ["fedavg", "fedas", "feddwa", "per_fedavg"])
@pytest.mark.parametrize("norm", [False, True])
def test_convolutions_on_a_cpu_go_client_by_client(
    name: str, norm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """… if they are large; small ones, and networks without them, stay wide."""
    data, model = ragged_federation(), SmallNet(norm=norm)
    method = methods.build({"name": name, "lr": 0.05})
    wide = simulation(method, data, model)
    monkeypatch.setattr(StackedEngine, "narrow_on_cpu", True)
    small = simulation(method, data, model)
    assert [len(g) for g in small.engine.groups(range(5))] == [5]
    monkeypatch.setattr("idiolect.engine.stacked.MIN_ACTIVATION_BYTES_TO_NARROW", 1)
    narrow = simulation(method, data, model)
    assert [len(g) for g in wide.engine.groups(range(5))] == [5]
    assert [len(g) for g in narrow.engine.groups(range(5))] == [1] * 5
    flat = simulation(method, data, nn.Sequential(nn.Flatten(), nn.Linear(144, 5)))
    assert [len(g) for g in flat.engine.groups(range(5))] == [5]
    for _ in range(3):
        one, other = wide.step(), narrow.step()
        for column in one.clients:
            np.testing.assert_allclose(one.clients[column], other.clients[column], rtol=1e-7)
    for leaf, value in wide.state()[0].items():
        ours = narrow.state()[0][leaf]
        torch.testing.assert_close(ours, value, rtol=1e-7, atol=1e-9, equal_nan=True)
