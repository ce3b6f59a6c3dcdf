"""The handle on clients' samples: dropout, draws and class means, keyed by client."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from idiolect import methods
from idiolect.core import tree
from idiolect.core.method import cross_entropy
from idiolect.core.net import Net
from idiolect.core.tree import Tree
from tests.conftest import ENGINES, SmallNet, run, simulation
from tests.engine.engines import LOCAL, RAGGED, local_of, stacked
from tests.methods.plain import CLIENTS, START, assert_same, differ, features, seeded


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


@pytest.mark.parametrize("engine", ENGINES)
def test_uniform_is_keyed_by_client(engine: str) -> None:
    one = local_of(engine, [2]).uniform((3,), "here")
    if engine == "stacked":
        assert torch.equal(local_of(engine, [0, 2]).uniform((3,), "here")[1], one[0])
    assert not torch.equal(local_of(engine, [1]).uniform((3,), "here"), one)
    assert not torch.equal(local_of(engine, [2]).uniform((3,), "there"), one)
    assert torch.equal(local_of("loop", [2]).uniform((3,), "here"), one)
