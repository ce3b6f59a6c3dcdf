"""FedProto: prototypes travel, the nearest one predicts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idiolect import methods
from idiolect.core import tree
from idiolect.errors import UserError
from idiolect.methods.fedproto import NEVER
from idiolect.methods.shared.prototypes import class_average
from tests.conftest import ENGINES, run
from tests.methods.plain import (
    CLASSES,
    CLIENTS,
    NET,
    START,
    TINY,
    Client,
    State,
    assert_same,
    differ,
    features,
    federate,
    model_with,
)
from tests.watched import Watched

FULL = {"lr": 0.2, "batch_size": "full", "momentum": 0.0}


def means(state: State, client: Client) -> list[Tensor | None]:
    f = features(state, client)
    return [f[client.y == c].mean(0) if (client.y == c).any() else None for c in range(CLASSES)]


def step(state: State, client: Client, prototypes: list[Tensor | None], lam: float) -> State:
    """One full-batch step on cross-entropy plus lambda times the mean squared distance."""
    model = model_with(state)
    f = model.body(client.x)
    known = [c for c, p in enumerate(prototypes) if p is not None]
    distance = [(f[client.y == c] - prototypes[c]).square().mean(1).sum() for c in known]
    loss = F.cross_entropy(model.head(f), client.y) + lam * sum(distance) / len(client)
    loss.backward()
    return {n: (p - 0.2 * p.grad).detach() for n, p in model.named_parameters()}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_two_rounds_by_hand(engine: str, weighting: str) -> None:
    spec = {"name": "fedproto", "lam": 0.7, "weighting": weighting, **FULL}
    ran = Watched(spec, TINY, NET, 2, engine=engine)
    models, prototypes = [dict(START) for _ in CLIENTS], [None] * CLASSES
    for t in range(2):
        models = [step(m, c, prototypes, 0.7) for m, c in zip(models, CLIENTS, strict=True)]
        own = [means(m, c) for m, c in zip(models, CLIENTS, strict=True)]
        for c in range(CLASSES):
            who = [i for i in range(len(CLIENTS)) if own[i][c] is not None]
            count = {
                i: int((CLIENTS[i].y == c).sum()) if weighting == "samples" else 1 for i in who
            }
            prototypes[c] = sum(count[i] * own[i][c] for i in who) / sum(count.values())
        assert_same(ran.server[t]["prototypes"], {"head.weight": torch.stack(prototypes)})
        for i, model in enumerate(models):
            assert_same(ran.mine[t + 1][i]["model"], model, what=f"client {i} round {t}")


def test_prediction_is_the_nearest_prototype_and_not_the_classifier() -> None:
    """Elsewhere the classifier predicts."""
    ran = Watched({"name": "fedproto", **FULL}, TINY, NET, 3)
    prototypes = ran.server[2]["prototypes"]["head.weight"]
    otherwise = 0
    for i, client in enumerate(CLIENTS):
        own = ran.mine[3][i]["model"]
        nearest = torch.cdist(features(own, client), prototypes).argmin(1)
        plain = model_with(ran.sim.personal_model(i))  # the export is a plain module
        assert torch.equal(plain(client.x).argmax(1), nearest)
        otherwise += int((model_with(own)(client.x).argmax(1) != nearest).sum())
    assert otherwise > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_after_local_work_the_prototypes_received_this_round_predict(engine: str) -> None:
    """Not the client's own, which know its own classes alone; its own head while there are none."""
    ran = Watched({"name": "fedproto", **FULL}, TINY, NET, 3, engine=engine)
    for i in range(len(CLIENTS)):
        assert_same(tree.client(ran.fits[0].trained, i), ran.mine[1][i]["model"], what="own head")
    otherwise = 0
    for t in (1, 2):
        received = ran.server[t - 1]["prototypes"]["head.weight"]
        for i, client in enumerate(CLIENTS):
            own = ran.mine[t + 1][i]["model"]
            nearest = torch.cdist(features(own, client), received).argmin(1)
            trained = model_with(tree.client(ran.fits[t].trained, i))
            assert torch.equal(trained(client.x).argmax(1), nearest), f"client {i} round {t}"
            known = {c: m for c, m in enumerate(means(own, client)) if m is not None}
            alone = torch.cdist(features(own, client), torch.stack(list(known.values()))).argmin(1)
            otherwise += int((torch.tensor(list(known))[alone] != nearest).sum())
    assert otherwise > 0


def test_a_class_nobody_has_is_never_predicted() -> None:
    fed = federate([Client(c.x, c.y % 2) for c in CLIENTS])
    ran = Watched({"name": "fedproto", **FULL}, fed, NET, 1)
    head = ran.personal[0][0]
    assert float(head["head.bias"][2]) == NEVER
    assert torch.equal(head["head.weight"][2], torch.zeros(4, dtype=torch.float64))
    assert (head["head.bias"][:2] > -100).all()


def test_before_any_prototype_the_own_head_predicts() -> None:
    sim = run(methods.build({"name": "fedproto", **FULL}), TINY, NET, 1, schedule=[[0]])
    fresh = methods.build({"name": "fedproto", **FULL})
    down = fresh.server_init(sim.engine.net, START, range(4))
    one = {part: {n: x[None] for n, x in leaf.items()} for part, leaf in down.items()}
    model = {n: x[None] for n, x in START.items()}
    assert_same(fresh.personal(one, {"model": model}), model, tol=0.0)


def test_class_average() -> None:
    rows = torch.tensor([[[1.0], [9.0], [9.0]], [[4.0], [2.0], [9.0]]])
    count = torch.tensor([[1, 0, 0], [2, 5, 0]])
    old = torch.tensor([[7.0], [7.0], [7.0]])
    assert class_average(rows, count, old).flatten().tolist() == [3.0, 2.0, 7.0]
    assert class_average(rows, count > 0, old).flatten().tolist() == [2.5, 2.0, 7.0]


def test_lambda_0_with_the_classifier_is_local() -> None:
    spec = {"name": "fedproto", "lam": 0.0, "prediction": "classifier", **FULL}
    ours = run(methods.build(spec), TINY, NET)
    theirs = run(methods.build({"name": "local", **FULL}), TINY, NET)
    pulled = run(methods.build(spec | {"lam": 1.0}), TINY, NET)
    for i in range(len(CLIENTS)):
        assert_same(ours.personal_model(i), theirs.personal_model(i), tol=1e-15)
        assert differ(pulled.personal_model(i), theirs.personal_model(i))


def test_only_prototypes_and_counts_travel() -> None:
    ran = Watched({"name": "fedproto"}, TINY, NET, 2)
    assert set(ran.fits[1].up) == {"prototypes", "counts"}
    each = CLASSES * 4 * 8  # classes x features, in float64
    assert ran.rounds[1].bytes_up == len(CLIENTS) * (each + 8 * CLASSES)
    assert ran.rounds[1].bytes_down == len(CLIENTS) * (each + CLASSES)


def test_a_head_without_bias_is_refused() -> None:
    with pytest.raises(UserError, match="bias"):
        run(methods.build("fedproto"), TINY, nn.Linear(3, 3, bias=False).double(), 1)


def test_prototypes_count_with_their_samples_unless_told_otherwise() -> None:
    """PFLlib's are averaged unweighted."""
    assert methods.build("fedproto").weighting == "samples"  # type: ignore[attr-defined]
