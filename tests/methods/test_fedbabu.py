"""FedBABU: a head nobody trains until it is used."""

from __future__ import annotations

import pytest

from idiolect import methods
from idiolect.errors import UserError
from tests.conftest import ENGINES, run
from tests.methods.plain import (
    BODY,
    CLIENTS,
    HEAD,
    NET,
    START,
    TINY,
    assert_same,
    combine,
    sgd,
    share,
)
from tests.watched import Watched

FULL = {"lr": 0.2, "batch_size": "full", "momentum": 0.0}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("part", "names"), [("head", HEAD), ("body", BODY), ("all", None)])
def test_two_rounds_by_hand(engine: str, part: str, names: tuple[str, ...] | None) -> None:
    spec = {"name": "fedbabu", "fine_tune": part, "fine_tune_epochs": 3, **FULL}
    ran = Watched(spec, TINY, NET, 2, engine=engine)
    model = dict(START)
    for t in range(2):
        model = combine(share(CLIENTS), [sgd(model, c, lr=0.2, only=BODY) for c in CLIENTS])
        assert_same(
            ran.sim.server_model() if t == 1 else ran.server[t]["base"], {n: model[n] for n in BODY}
        )
        for i, client in enumerate(CLIENTS):
            passes = [list(range(len(client)))] * 3
            tuned = sgd(model, client, passes, lr=0.2, only=names)
            assert_same(ran.personal[t][i], tuned, what=f"client {i} round {t}")


def test_the_head_keeps_its_start_and_fine_tuning_leaves_nothing_behind() -> None:
    ran = Watched({"name": "fedbabu", **FULL}, TINY, NET, 2)
    head = {n: START[n] for n in HEAD}
    assert_same(ran.sim.server_model(), head, tol=0.0)
    for i in range(len(CLIENTS)):
        assert_same(ran.mine[2][i]["own"], head, tol=0.0)
        assert_same(ran.sim.personal_model(i), ran.sim.personal_model(i), tol=0.0)
    assert not set(HEAD) & set(ran.fits[1].up["base"])


def test_nothing_frozen_and_no_fine_tuning_is_fedavg() -> None:
    spec = {"name": "fedbabu", "personal_layers": "none", "fine_tune_epochs": 0, **FULL}
    ours, theirs = (
        run(methods.build(spec), TINY, NET),
        run(methods.build({"name": "fedavg", **FULL}), TINY, NET),
    )
    assert_same(ours.personal_model(1), theirs.personal_model(1), tol=0.0)


def test_a_model_that_is_all_head_is_refused() -> None:
    with pytest.raises(UserError, match="whole model"):
        run(methods.build({"name": "fedbabu", "personal_layers": "all"}), TINY, NET, 1)
    with pytest.raises(UserError, match="fine_tune_epochs"):
        methods.build({"name": "fedbabu", "fine_tune_epochs": -1})
