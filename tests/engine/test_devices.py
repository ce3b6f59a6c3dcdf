"""The server's work happens where its tensors lie. They are put on `meta`, a device that keeps
shapes but no numbers and shares no operation with the host: what a method moves away, or makes
somewhere else, is found without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from idiolect.core import tree
from idiolect.core.clients import Table
from idiolect.core.method import Down, Method, Server, Ups
from idiolect.core.tree import Record
from idiolect.methods.fedavg import FedAvg
from tests.test_every_method import each_method, ran_with, small


class Shelf:
    """A table all of whose rows look alike."""

    def __init__(self, row: Record) -> None:
        self.row = row

    def __getitem__(self, ids: Sequence[int]) -> Record:
        return tree.each(lambda x: x.expand(len(ids), *x.shape), self.row)

    def __setitem__(self, ids: Sequence[int], record: Record) -> None:
        stays(record)
        self.row = tree.row(record, 0)

    mix = Table.mix


def away(value: Any) -> Any:
    if isinstance(value, Table):
        return Shelf(tree.each(away, tree.row(value[[0]], 0)))
    if isinstance(value, Tensor):
        return torch.empty_like(value, device="meta")
    return {k: away(v) for k, v in value.items()}


def stays(state: Any) -> None:
    """Everything is still there, but for parts that are empty."""
    if isinstance(state, Down):
        stays(state.shared | state.each)
        return
    plain = {k: v for k, v in (state or {}).items() if not isinstance(v, Shelf | Table)}
    host = [n for n, x in tree.leaves(plain).items() if x.numel() and x.device.type != "meta"]
    assert not host, f"on the host: {host}"


def zeros(x: Tensor) -> Any:
    return [zeros(row) for row in x] if x.ndim else 0


def work(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """All the server does in a round, and the model its clients would predict with."""
    sim, server, ups = ran_with(method)
    state = {k: away(v) for k, v in server.items()}
    there = Server(
        state, net=server.net, clients=server.clients, sizes=server.sizes, round=server.round
    )
    sizes, mine = away(ups.sizes), away(sim.mine[ups.ids])
    arrived = Ups(away(ups.record), ups.ids, sizes, ups.started, ups.round, ups.away)
    start = away(sim.start_tree)
    for read, answer in (("tolist", zeros), ("__int__", lambda _: 0), ("__float__", lambda _: 1.0)):
        monkeypatch.setattr(Tensor, read, answer)  # numbers a decision in Python reads
    monkeypatch.setattr(Tensor, "__bool__", lambda _: True)

    stays(method.server_init(server.net, start, server.clients))
    method.prepare(there, ups.ids)
    stays(there)
    down = method.download(there, ups.ids)
    stays(down)
    stays(method.personal(down.stacked(len(ups)), mine))
    method.aggregate(there, arrived)
    stays(there)
    stays(there.logs)
    stays(method.shared(there))


@each_method
def test_the_server_works_where_its_tensors_lie(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work(small(name), monkeypatch)


class Products(TorchDispatchMode):
    """Which products PyTorch would have made in TF32 on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.rough: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if name in ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv") and out.dtype == torch.float32:
            self.rough += [name] * torch.backends.cuda.matmul.allow_tf32
        return out


@each_method
def test_models_are_mixed_in_single_precision(name: str) -> None:
    """`--dtype tf32` is for networks: models cut to 10 bits every round would lose small steps."""
    method = small(name)
    sim, server, ups = ran_with(method, dtype="float32")
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with Products() as seen:
            method.prepare(server, ups.ids)
            down = method.download(server, ups.ids)
            method.personal(down.stacked(len(ups)), sim.mine[ups.ids])
            method.aggregate(server, ups)
            method.shared(server)
            assert not seen.rough
            torch.ones(2, 2) @ torch.ones(2, 2)  # for networks it is still allowed
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert seen.rough == ["mm"]


@pytest.mark.parametrize("alike", [True, False])
def test_clients_mix_and_compare_in_single_precision(alike: bool) -> None:
    """By what trees offer for it, one stack for all or one for each."""
    own, weight = {"w": torch.randn(4, 6)}, torch.rand(4, 3)
    shown = torch.randn(3, 6).expand(4, 3, 6)
    stacks = {"w": shown if alike else shown.clone()}
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with Products() as seen:
            blended = tree.blend(weight, stacks)["w"]
            along = tree.products(own, stacks)
            tree.gram(own, own)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert not seen.rough
    torch.testing.assert_close(blended, (weight[..., None] * shown).sum(1))
    torch.testing.assert_close(along, (own["w"][:, None] * shown).sum(2))


@dataclass(frozen=True)
class Wandering(FedAvg):
    how: str = "move"

    def aggregate(self, server: Server, ups: Ups) -> None:
        if self.how == "move":
            server["model"] = tree.mix(self.weights(ups), tree.each(Tensor.cpu, ups["model"]))
        elif self.how == "make":
            server["model"] = tree.mix(torch.ones(len(ups)) * ups.share, ups["model"])
        else:
            server["asked"] = torch.tensor(ups.ids)


@pytest.mark.parametrize("how", ["move", "make", "keep"])
def test_wandering_is_found(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((NotImplementedError, RuntimeError, AssertionError)):
        work(Wandering(how=how), monkeypatch)
