"""CFL: the best bi-partition by brute force, FedAvg until the first split, when and what splits."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from idiolect import methods
from idiolect.errors import UserError
from idiolect.methods.cfl import bipartition
from tests.conftest import ENGINES, simulation
from tests.methods.plain import (
    NET,
    TINY,
    Client,
    assert_same,
    combine,
    differ,
    federate,
    minus,
    vector,
)
from tests.watched import Watched

FULL = {"lr": 0.2, "batch_size": "full", "epochs": 2}
ALWAYS = {"name": "cfl", "eps1": 1e9, "eps2": 0.0, "first_split": 0, **FULL}


def opposed(sizes: tuple[int, ...] = (40, 30, 20, 50, 30)) -> list[Client]:
    """Clients 1 and 3 label against the others."""
    generator = torch.Generator().manual_seed(0)
    clients = []
    for i, n in enumerate(sizes):
        x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
        y = (x[:, 0] > 0).long()
        clients.append(Client(x, 1 - y if i in (1, 3) else y))
    return clients


GROUPS = opposed()


@pytest.mark.parametrize("seed", range(8))
def test_bipartition_is_the_best(seed: int) -> None:
    k = 2 + seed % 5
    v = torch.randn(k, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    cosine = torch.nn.functional.cosine_similarity(v[:, None], v[None], dim=2)
    best = min(
        max(float(cosine[i, j]) for i in first for j in range(k) if j not in first)
        for size in range(1, k)
        for first in combinations(range(k), size)
    )
    second, across = bipartition(cosine)
    assert not second[0] and second.any()
    assert float(across) == pytest.approx(best)
    assert float(cosine[~second][:, second].max()) == pytest.approx(best)


def test_bipartition_of_two_chains() -> None:
    """0-2 and 1-3 are linked by 0.9 and 0.8, the best link between them is 0.1."""
    cosine = torch.tensor(
        [[1.0, -0.5, 0.9, 0.1], [-0.5, 1, 0, 0.8], [0.9, 0, 1, -0.9], [0.1, 0.8, -0.9, 1]]
    )
    second, across = bipartition(cosine)
    assert second.tolist() == [False, True, False, True]
    assert float(across) == pytest.approx(0.1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("schedule", [None, [[0, 2], [1, 2, 3], [3]]])
def test_is_fedavg_before_the_first_split(engine: str, schedule: list | None) -> None:
    settings = {"lr": 0.2, "batch_size": 4}
    more = {"engine": engine, "schedule": schedule}
    ran = Watched({"name": "cfl", **settings}, TINY, NET, 3, **more)
    fedavg = Watched({"name": "fedavg", **settings}, TINY, NET, 3, **more)
    for t in range(3):
        assert ran.rounds[t].bytes_down == fedavg.rounds[t].bytes_down
        for i in range(4):
            assert_same(ran.personal[t][i], fedavg.personal[t][i], 1e-15)
    shared = ran.sim.method.shared(ran.sim.server)
    assert shared is not None
    assert_same(shared, fedavg.server[-1]["model"], 1e-15)


@pytest.mark.parametrize("engine", ENGINES)
def test_groups_are_told_apart(engine: str) -> None:
    ran = Watched({**ALWAYS, "first_split": 1}, federate(GROUPS), NET, 3, engine=engine)
    cluster = [ran.logs(t)["cluster"].tolist() for t in range(3)]
    assert cluster[:2] == [[0, 0, 0, 0, 0], [0, 1, 0, 1, 0]]
    # Both halves go on from the cluster's model...
    everyone = [ran.up(1, "model", i) for i in range(5)]
    whole = combine([n / 170 for n in (40, 30, 20, 50, 30)], everyone)
    for i in range(5):
        assert_same(ran.personal[1][i], whole, 1e-14)
    # ...and are averaged apart from then on (the half of three splits again, on the old model).
    sent = [ran.up(2, "model", i) for i in range(5)]
    for i in (1, 3):
        assert_same(ran.personal[2][i], combine([30 / 80, 50 / 80], [sent[1], sent[3]]), 1e-14)
    for i in (0, 2, 4):
        mean = combine([40 / 90, 20 / 90, 30 / 90], [sent[0], sent[2], sent[4]])
        assert_same(ran.personal[2][i], mean, 1e-14)
    assert cluster[2][1] == cluster[2][3] == 1 and ran.sim.method.shared(ran.sim.server) is None


def lengths(ran: Watched) -> tuple[float, float]:
    """|mean update| and the longest update of round 0."""
    updates = [minus(ran.up(0, "model", i), ran.sim.start_tree) for i in range(5)]
    mean = combine([n / 170 for n in (40, 30, 20, 50, 30)], updates)
    return float(vector(mean).norm()), max(float(vector(u).norm()) for u in updates)


def test_both_criteria() -> None:
    federation = federate(GROUPS)
    mean, longest = lengths(Watched(ALWAYS, federation, NET, 1))
    for eps1, eps2, splits in (
        (mean * 1.001, longest * 0.999, True),
        (mean * 0.999, longest * 0.999, False),
        (mean * 1.001, longest * 1.001, False),
    ):
        ran = Watched({**ALWAYS, "eps1": eps1, "eps2": eps2}, federation, NET, 1)
        assert bool(ran.logs(0)["cluster"].any()) == splits


def test_separation() -> None:
    federation = federate(GROUPS)
    for gamma_max, splits in ((0.3, True), (1.0, False)):
        ran = Watched({**ALWAYS, "gamma_max": gamma_max}, federation, NET, 1)
        assert bool(ran.logs(0)["cluster"].any()) == splits


def test_no_split_while_a_member_is_away() -> None:
    ran = Watched(ALWAYS, federate(GROUPS), NET, 2, schedule=[[0, 1, 2, 3], [0, 1, 2, 3, 4]])
    assert ran.logs(0)["cluster"].tolist() == [0] * 5
    assert ran.logs(1)["cluster"].tolist() == [0, 1, 0, 1, 0]


def test_is_fedavg_where_a_part_of_the_clients_takes_part() -> None:
    """Whatever the thresholds: the cluster of all is never there as a whole."""
    more = {"participation": 0.6}
    ours = Watched(ALWAYS, federate(GROUPS), NET, 4, **more)
    theirs = Watched({"name": "fedavg", **FULL}, federate(GROUPS), NET, 4, **more)
    for one, other in zip(ours.personal[-1], theirs.personal[-1], strict=True):
        assert_same(one, other, tol=1e-12)


def test_absent_clusters_keep_their_model() -> None:
    schedule = [[0, 1, 2, 3, 4], [1, 3]]
    ran = Watched({**ALWAYS, "smallest": 5}, federate(GROUPS), NET, 2, schedule=schedule)
    assert_same(ran.personal[1][0], ran.personal[0][0], 0)
    assert differ(ran.personal[1][1], ran.personal[0][1])


def test_resume_after_a_split() -> None:
    federation, method = federate(GROUPS), methods.build({**ALWAYS, "smallest": 5})
    whole = simulation(method, federation, NET, 4)
    for _ in range(2):
        whole.step()
    again = simulation(method, federation, NET, 4)
    again.restore(*whole.state())
    for _ in range(2):
        whole.step()
        again.step()
    for i in range(5):
        assert_same(whole.personal_model(i), again.personal_model(i), 0)


@pytest.mark.parametrize("bad", [{"eps1": -1.0}, {"smallest": 1}, {"first_split": -1}])
def test_settings_are_checked(bad: dict) -> None:
    with pytest.raises(UserError):
        methods.build({"name": "cfl", **bad})
