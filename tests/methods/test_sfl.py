"""SFL: graphs in closed form, rounds in plain PyTorch, reductions to FedAvg."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from idiolect import methods
from idiolect.core.method import Ups
from idiolect.errors import UserError
from idiolect.methods.sfl import SFL
from tests.conftest import ENGINES
from tests.methods.plain import (
    CLIENTS,
    NET,
    START,
    TINY,
    Client,
    State,
    angle,
    assert_same,
    combine,
    differ,
    minus,
    model_with,
    vector,
)
from tests.watched import Watched

FULL = {"name": "sfl", "lr": 0.2, "batch_size": "full", "epochs": 2}


def ups(**record: object) -> Ups:
    k = len(next(iter(record["model"].values())))  # type: ignore[attr-defined]
    sizes = torch.ones(k, dtype=torch.float64)
    return Ups(dict(record), list(range(k)), sizes, [0] * k, 0)


def points(*at: tuple[float, ...]) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(at, dtype=torch.float64)}


ORIGIN = {"w": torch.tensor([1.0, 1.0], dtype=torch.float64)}


def test_graph_of_similar_updates() -> None:
    """Updates along 0, 60, 90 and 180 degrees; the strongest link is kept, and oneself."""
    c, s = 0.5, 3**0.5 / 2
    moved = points((1 + 2, 1), (1 + c, 1 + s), (1, 1 + 3), (1 - 1, 1))
    a = SFL(neighbours=1).adjacency(ups(model=moved), ORIGIN)
    expected = [
        [1 / (1 + c), c / (1 + c), 0, 0],
        [0, 1 / (1 + s), s / (1 + s), 0],
        [0, s / (1 + s), 1 / (1 + s), 0],
        [0, 0, 0, 1],
    ]
    assert torch.allclose(a, torch.tensor(expected, dtype=a.dtype), atol=1e-15)


def test_like_minded_clients_are_a_complete_graph() -> None:
    moved = points((2, 2), (3, 3), (5, 5))
    a = SFL(neighbours=9).adjacency(ups(model=moved), ORIGIN)
    assert torch.allclose(a, torch.full_like(a, 1 / 3))
    alone = SFL(neighbours=0).adjacency(ups(model=moved), ORIGIN)
    assert torch.equal(alone, torch.eye(3, dtype=a.dtype))


def test_a_client_that_did_not_move_is_linked_to_itself() -> None:
    a = SFL().adjacency(ups(model=points((1, 1), (2, 1))), ORIGIN)
    assert torch.equal(a, torch.eye(2, dtype=a.dtype))


def test_graph_of_classes() -> None:
    has = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 1]]).bool()
    sent = ups(model=points((0, 0), (1, 1), (3, 3)), classes=has)
    a = SFL(graph="classes").adjacency(sent, ORIGIN)
    assert a.tolist() == [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]]


def tethered(w: State, client: Client, node: State, world: State, lam: float) -> State:
    for _ in range(2):
        model = model_with(w)
        value = F.cross_entropy(model(client.x), client.y)
        for to in (node, world):
            square = sum((p - to[n]).square().sum() for n, p in model.named_parameters())
            value = value + lam * (square + 1e-12).sqrt()
        value.backward()
        w = {n: p.detach() - 0.2 * p.grad for n, p in model.named_parameters()}
    return w


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("graph", ["similarity", "classes"])
def test_rounds(engine: str, graph: str) -> None:
    settings = {"graph": graph, "neighbours": 2, "layers": 2, "server_alpha": 0.7}
    ran = Watched({**settings, **FULL}, TINY, NET, 3, engine=engine)
    node, world = [dict(START)] * 4, dict(START)
    for t in range(3):
        own = [tethered(world, c, node[i], world, 0.3) for i, c in enumerate(CLIENTS)]
        a = ran.logs(t)["adjacency"]
        assert torch.allclose(a.sum(1), torch.ones(4, dtype=a.dtype))
        if graph == "classes":
            classes = [set(c.y.tolist()) for c in CLIENTS]
            links = [[float(bool(p & q)) for q in classes] for p in classes]
            assert torch.equal(a > 0, torch.tensor(links) > 0)
        else:
            moved = [vector(minus(v, world)) for v in own]
            cosine = [[max(angle(p, q), 0.0) for q in moved] for p in moved]
            for i, row in enumerate(cosine):
                keep = sorted(range(4), key=row.__getitem__)[-3:]  # oneself has cosine 1
                links = [row[j] if j in keep else 0.0 for j in range(4)]
                assert a[i].tolist() == pytest.approx([v / sum(links) for v in links])
        once = [combine(a[i], own) for i in range(4)]
        twice = [combine(a[i], once) for i in range(4)]
        node = [combine([0.7, 0.3], [twice[i], own[i]]) for i in range(4)]
        world = combine([0.25] * 4, node)
        for i in range(4):
            assert_same(ran.personal[t][i], node[i], 1e-9, what=f"{t} {i}")
            assert_same(ran.up(t, "model", i), own[i], 1e-9)


def test_is_fedavg_on_a_complete_graph() -> None:
    same = {k: v for k, v in FULL.items() if k != "name"}
    ran = Watched({"graph": "complete", "lam": 0.0, **FULL}, TINY, NET, 3)
    fedavg = Watched({"name": "fedavg", "weighting": "uniform", **same}, TINY, NET, 3)
    for t in range(3):
        for i in range(4):
            assert_same(ran.personal[t][i], fedavg.personal[t][i], 1e-14)


def test_without_links_everybody_keeps_its_own_model() -> None:
    ran = Watched({"graph": "identity", "lam": 0.0, **FULL}, TINY, NET, 2)
    for i in range(4):
        assert_same(ran.personal[1][i], ran.up(1, "model", i), 1e-15)


def test_lambda_changes_the_result() -> None:
    a, b = (Watched({"lam": lam, **FULL}, TINY, NET, 2) for lam in (0.0, 0.3))
    assert all(differ(a.up(1, "model", i), b.up(1, "model", i)) for i in range(4))


def test_classes_leave_the_client_only_when_asked() -> None:
    ran = {g: Watched({"graph": g, **FULL}, TINY, NET, 1) for g in ("similarity", "classes")}
    assert set(ran["similarity"].fits[0].up) == {"model"}
    assert set(ran["classes"].fits[0].up) == {"model", "classes"}


@pytest.mark.parametrize("bad", [{"lam": -1.0}, {"layers": 0}, {"server_alpha": 1.5}])
def test_settings_are_checked(bad: dict) -> None:
    with pytest.raises(UserError):
        methods.build({"name": "sfl", **bad})
