"""FedPer: the base is averaged, the personal layers never leave the client."""

from __future__ import annotations

import pytest
import torch

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
    TinyNet,
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


@pytest.mark.parametrize("engine", ENGINES)
def test_uniform_heads_are_those_of_pflego(engine: str) -> None:
    """PFLEGO's FedPer: heads of the client's own classes, uniform in [0, 1), full-batch steps."""
    steps = {"lr": 0.1, "batch_size": "full", "epochs": 3, "head_init": "uniform"}
    ran = Watched({"name": "fedper", **steps}, TINY, NET, 2, engine=engine)
    exact = Watched({"name": "pflego", "tau": 1}, TINY, NET, 1, engine=engine)
    for i, client in enumerate(CLIENTS):
        own = sorted(set(client.y.tolist()))
        start, end = ran.mine[0][i]["own"], ran.mine[2][i]["own"]
        assert_same(start, exact.mine[0][i]["head"], 0)
        absent = [c for c in range(3) if c not in own]
        assert torch.equal(end["head.bias"][absent], start["head.bias"][absent])
        assert torch.equal(end["head.weight"][absent], start["head.weight"][absent])
        # On the classes it has, the client's model is a plain one with as many outputs.
        body, head = TinyNet().double().body, torch.nn.Linear(4, len(own)).double()
        body.load_state_dict({n.removeprefix("body."): START[n] for n in BODY})
        head.load_state_dict({k: start[f"head.{k}"][own] for k in ("weight", "bias")})
        optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
        y = torch.tensor([own.index(int(c)) for c in client.y])
        for _ in range(3):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(head(body(client.x)), y).backward()
            optimizer.step()
        sent = {f"body.{n}": v for n, v in body.state_dict().items()}
        assert_same(ran.up(0, "base", i), sent, 1e-11)
        assert torch.allclose(ran.mine[1][i]["own"]["head.weight"][own], head.weight, atol=1e-11)
