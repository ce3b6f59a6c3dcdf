"""FedRecon: PFLEGO's definition and the original's options."""

from __future__ import annotations

from typing import Any

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
    Client,
    State,
    assert_same,
    combine,
    gradient,
    model_with,
    sgd,
    share,
)
from tests.watched import Watched

BASIC = {"name": "fedrecon", "tau": 4, "beta": 0.3, "rho": 0.2, "server": "sgd"}
EVERYTHING = {"head_init": "start"}
NEVER = -1e9


def half(client: Client, first: int) -> Client:
    return Client(client.x[first::2], client.y[first::2])


def start_of(client: Client) -> State:
    """The model's own start; rows of classes the client lacks can never win."""
    model = {n: x.clone() for n, x in START.items()}
    for c in set(range(3)) - set(client.y.tolist()):
        model["head.weight"][c], model["head.bias"][c] = 0.0, NEVER
    return model


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("heads", ["keep", "reset"])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
def test_two_rounds_by_hand(engine: str, heads: str, split: bool, steps: int) -> None:
    spec: dict[str, Any] = BASIC | EVERYTHING
    spec |= {"heads": heads, "split": split, "update_steps": steps, "update_lr": 0.1}
    ran = Watched(spec, TINY, NET, 2, engine=engine)
    theta = {n: START[n] for n in BODY}
    own = [{n: start_of(c)[n] for n in HEAD} for c in CLIENTS]

    def reconstruct(i: int, head: State) -> State:
        support = half(CLIENTS[i], 0) if split else CLIENTS[i]
        done = sgd(theta | head, support, [list(range(len(support)))] * 4, lr=0.3, only=HEAD)
        return {n: done[n] for n in HEAD}

    for t in range(2):
        sent = []
        for i, client in enumerate(CLIENTS):
            head = reconstruct(
                i, {n: start_of(client)[n] for n in HEAD} if heads == "reset" else own[i]
            )
            query = half(client, 1) if split else client
            if steps == 1:
                sent.append({n: gradient(theta | head, query)[n] for n in BODY})
            else:
                rows = [list(range(len(query)))] * steps
                after = sgd(theta | head, query, rows, lr=0.1, only=BODY)
                sent.append({n: (theta[n] - after[n]) / 0.1 for n in BODY})
            own[i] = head
        mean = combine(share(CLIENTS), sent)
        theta = {n: theta[n] - 0.2 * mean[n] for n in BODY}
        assert_same(ran.server[t]["theta"], theta, what=f"theta {t}")
        for i, client in enumerate(CLIENTS):
            again = reconstruct(i, {n: start_of(client)[n] for n in HEAD})
            tested = again if heads == "reset" else own[i]
            assert_same(ran.personal[t][i], theta | tested, what=f"client {i} round {t}")
            assert_same(ran.mine[t + 1][i]["head"], own[i])


def test_the_first_gradient_is_pflegos_with_one_step_more() -> None:
    ours = Watched(BASIC, TINY, NET, 1)
    theirs = Watched(
        {"name": "pflego", "tau": 5, "beta": 0.3, "rho": 0.2, "server": "sgd"}, TINY, NET, 1
    )
    for i in range(len(CLIENTS)):
        assert_same(ours.up(0, "gradient", i), theirs.up(0, "gradient", i), tol=1e-15)
    assert_same(ours.server[0]["theta"], theirs.server[0]["theta"], tol=1e-15)


def test_without_scale_the_step_shrinks_by_the_share_of_participants() -> None:
    half_of_them = {"schedule": [[0, 2]]}
    full, plain = (
        run(methods.build(BASIC | {"scale": s}), TINY, NET, 1, **half_of_them)
        for s in (True, False)
    )
    for n in BODY:
        moved = full.server["theta"][n] - START[n]
        assert torch.allclose(plain.server["theta"][n] - START[n], moved / 2, atol=1e-15)


def test_an_absent_client_keeps_its_head_bit_for_bit() -> None:
    ran = Watched(BASIC, TINY, NET, 2, schedule=[[0, 1, 2, 3], [0, 1]])
    assert_same(ran.mine[2][3]["head"], ran.mine[1][3]["head"], tol=0.0)
    assert not set(HEAD) & set(ran.fits[1].up["gradient"])


def test_the_original_predicts_with_a_head_made_for_the_delivered_theta() -> None:
    ran = Watched(BASIC | {"heads": "reset"}, TINY, NET, 2)
    kept = Watched(BASIC | {"heads": "keep"}, TINY, NET, 1)
    one = model_with(ran.sim.personal_model(0))(CLIENTS[0].x)
    assert bool(torch.isfinite(one).all())
    # after one round, both hold the head made for the start; the original remakes it
    gap = ran.personal[0][0]["head.weight"] - kept.personal[0][0]["head.weight"]
    assert float(gap.abs().max()) > 1e-4


def test_settings() -> None:
    with pytest.raises(UserError, match="head_step"):
        methods.build({"name": "fedrecon", "head_step": "exact"})
    with pytest.raises(UserError, match="update_steps"):
        methods.build({"name": "fedrecon", "update_steps": 0})
