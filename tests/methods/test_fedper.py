"""FedPer: the base is averaged, the personal layers never leave the client."""

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
    NormNet,
    State,
    assert_same,
    batches,
    combine,
    differ,
    seeded,
    sgd,
    share,
)
from tests.watched import Watched

FIXED = {"lr": 0.2, "batch_size": 4, "order": "fixed"}
EVERYONE = [[0, 1, 2, 3]] * 3
PARTIAL = [[0, 1, 3], [2], [0, 2, 3]]


def reference(
    who: list[list[int]], own: tuple[str, ...], epochs: int = 1
) -> tuple[list[State], list[list[State]]]:
    """Bases and personal models after every round."""
    base = {n: v for n, v in START.items() if n not in own}
    layers = [{n: START[n] for n in own} for _ in CLIENTS]
    bases, personal = [], []
    for ids in who:
        trained = {
            i: sgd(base | layers[i], CLIENTS[i], batches(len(CLIENTS[i]), 4, epochs), lr=0.2)
            for i in ids
        }
        base = combine(
            share([CLIENTS[i] for i in ids]), [{n: trained[i][n] for n in base} for i in ids]
        )
        for i in ids:
            layers[i] = {n: trained[i][n] for n in own}
        bases.append(base)
        personal.append([base | own_layers for own_layers in layers])
    return bases, personal


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("who", [EVERYONE, PARTIAL], ids=["full", "partial"])
@pytest.mark.parametrize(
    ("layers", "own"),
    [
        ("head", HEAD),
        ("body.2.*, head.*", tuple(n for n in START if not n.startswith("body.0"))),
        ("body.0.weight", ("body.0.weight",)),
        ("none", ()),
    ],
)
def test_against_plain_torch(
    layers: str, own: tuple[str, ...], who: list[list[int]], engine: str
) -> None:
    method = {"name": "fedper", "personal_layers": layers, "epochs": 2, **FIXED}
    ran = Watched(method, TINY, NET, 3, engine=engine, schedule=who)
    bases, personal = reference(who, own, epochs=2)
    for t in range(3):
        assert set(ran.server[t]["base"]) == set(bases[t])
        assert_same(ran.server[t]["base"], bases[t], what=f"base {t}")
        for i in range(4):
            assert_same(ran.personal[t][i], personal[t][i], what=f"round {t} client {i}")


def test_personal_layers_are_neither_sent_nor_received() -> None:
    ran = Watched({"name": "fedper", **FIXED}, TINY, NET, 2)
    assert set(ran.fits[0].up["base"]) == set(BODY)
    assert set(ran.downs[0]["base"]) == set(BODY)
    heads = [{n: p[n] for n in HEAD} for p in ran.personal[-1]]
    assert all(differ(heads[0], h) for h in heads[1:])


def test_all_personal_is_local_training() -> None:
    ran = Watched({"name": "fedper", "personal_layers": "all", **FIXED}, TINY, NET, 2)
    alone = Watched({"name": "local", **FIXED}, TINY, NET, 2)
    for a, b in zip(ran.personal[-1], alone.personal[-1], strict=True):
        assert_same(a, b, 0)
    assert ran.rounds[0].bytes_up == 0


def test_none_personal_is_fedavg() -> None:
    ran = Watched({"name": "fedper", "personal_layers": "none", **FIXED}, TINY, NET, 2)
    average = Watched({"name": "fedavg", **FIXED}, TINY, NET, 2)
    assert_same(ran.server[-1]["base"], average.server[-1]["model"], 0)


def test_personal_norm_layers_keep_their_statistics() -> None:
    net = seeded(NormNet)
    ran = Watched({"name": "fedper", "personal_layers": "norm", **FIXED}, TINY, net, 2)
    assert set(ran.mine[2][0]["own"]) == {
        f"body.1.{n}" for n in ("weight", "bias", "running_mean", "running_var")
    }


def test_unknown_layers() -> None:
    with pytest.raises(UserError, match="no parameter matches 'boddy"):
        run(methods.build({"name": "fedper", "personal_layers": "boddy.*"}), TINY, NET, 1)
