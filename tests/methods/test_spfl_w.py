"""SPFL-w as the published program runs it (variant=code), against plain PyTorch."""

from __future__ import annotations

from math import exp

import pytest
import torch

from idiolect.core import tree
from tests.conftest import ENGINES
from tests.methods.plain import (
    BODY,
    CLIENTS,
    HEAD,
    NET,
    START,
    TINY,
    State,
    angle,
    assert_same,
    combine,
    differ,
    minus,
    sgd,
)
from tests.watched import Watched

METHOD = {
    "name": "spfl_w",
    "variant": "code",
    "gamma": 2,
    "lr": 0.2,
    "batch_size": "full",
    "weight_decay": 0.0,
}
N = len(CLIENTS)
SHARES = dict(zip((n for n in START if n.endswith("weight")), (0.4, 0.3, 0.3), strict=True))
EVERYONE = list(range(N))


class Program:
    """The published program, with Python loops over clients."""

    def __init__(self) -> None:
        self.models = [START] * N
        self.copies = [START] * N
        self.cosines = torch.zeros(N, N, dtype=torch.float64)

    def round(self, ids: list[int], refresh: bool, first: bool) -> None:
        if refresh and not first:
            mixed = self.mixed(EVERYONE, self.copies)
            self.models = [mixed[i] for i in EVERYONE]
        # full batches: the training that measures and the one that counts are the same
        trained = {i: sgd(self.models[i], CLIENTS[i], lr=0.2, repeat=2) for i in ids}
        if refresh:
            self.measure({i: minus(trained[i], self.models[0]) for i in ids})
        moved = {i: minus(trained[i], self.models[i]) for i in ids}
        recon = {i: plus(self.copies[i], moved[i]) for i in ids}
        mixed = self.mixed(ids, [recon.get(i, START) for i in EVERYONE])
        for i in ids:
            self.models[i] = plus(trained[i], minus(mixed[i], recon[i]))
            self.copies[i] = mixed[i]

    def measure(self, updates: dict[int, State]) -> None:
        for i, a in updates.items():
            for j, b in updates.items():
                new = sum(c * angle(a[n].flatten(), b[n].flatten()) for n, c in SHARES.items())
                self.cosines[i, j] = 0.6 * self.cosines[i, j] + 0.4 * new

    def mixed(self, ids: list[int], states: list[State]) -> dict[int, State]:
        out = {}
        for i in ids:
            raw = [exp(float(self.cosines[i, j])) for j in ids]
            body = combine([r / sum(raw) for r in raw], [states[j] for j in ids])
            head = combine([1 / len(ids)] * len(ids), [states[j] for j in ids])
            out[i] = {n: (head if n in HEAD else body)[n] for n in START}
        return out


def plus(a: State, b: State) -> State:
    return {n: a[n] + b[n] for n in a}


def program(schedule: list[list[int]]) -> list[list[State]]:
    here, history = Program(), []
    for t, ids in enumerate(schedule):
        here.round(ids, refresh=t % 2 == 0, first=t == 0)
        history.append(list(here.models))
    return history


@pytest.mark.parametrize("engine", ENGINES)
def test_rounds_around_two_refreshes(engine: str) -> None:
    expected = program([EVERYONE] * 5)
    ran = Watched(METHOD, TINY, NET, 5, engine=engine)
    for t in range(5):
        for i in EVERYONE:
            assert_same(ran.personal[t][i], expected[t][i], what=f"round {t} client {i}")


def test_some_clients_take_part() -> None:
    """Arrivals mix among themselves; a refresh is for all."""
    schedule = [[0, 1, 3], [1, 2], [0, 2, 3], EVERYONE, [1, 2]]
    expected = program(schedule)
    ran = Watched(METHOD, TINY, NET, 5, schedule=schedule)
    for t in range(5):
        for i in EVERYONE:
            assert_same(ran.personal[t][i], expected[t][i], what=f"round {t} client {i}")


def test_heads_are_one_and_bodies_are_not_after_a_refresh() -> None:
    """The body is mixed by the St known until then, the head by equal weights."""
    ran = Watched(METHOD, TINY, NET, 3)
    sent = [tree.client(ran.downs[2]["model"], i) for i in EVERYONE]
    for i in EVERYONE[1:]:
        assert_same({n: sent[i][n] for n in HEAD}, {n: sent[0][n] for n in HEAD}, 1e-13)
        assert differ({n: sent[i][n] for n in BODY}, sent[0], 1e-9)


def test_the_refresh_is_not_a_plain_reset() -> None:
    paper = Watched({**METHOD, "variant": "paper"}, TINY, NET, 3)
    code = Watched(METHOD, TINY, NET, 3)
    mean = combine([1 / N] * N, paper.personal[1])
    assert_same(tree.client(paper.downs[2]["model"], 1), mean, 1e-13)
    mean = combine([1 / N] * N, code.personal[1])
    assert differ(tree.client(code.downs[2]["model"], 1), mean, 1e-9)
