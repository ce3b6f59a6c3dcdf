"""Clients side by side in threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from idiolect import methods
from idiolect.core.net import Net
from idiolect.engine.stacked import StackedEngine
from idiolect.engine.threads import ClientThreads, Nets
from tests.conftest import SmallNet, ragged_federation, simulation


def threads(most: int) -> ClientThreads:
    return ClientThreads((Net(SmallNet()), Net(SmallNet(), training=True)), most)


def test_results_come_in_order_and_every_thread_has_its_own_networks() -> None:
    both = threading.Barrier(2, timeout=10)
    used: set[int] = set()

    def work(nets: Nets, k: int) -> int:
        if k < 2:
            both.wait()  # two at once, or this fails
            used.add(id(nets[0].module))
        return k * k

    assert threads(2).map(work, [5, 5, 3, 1]) == [0, 1, 4, 9]
    assert len(used) == 2


def test_gradients_and_threads_are_those_of_the_caller() -> None:
    before = torch.get_num_threads()
    with torch.no_grad():
        assert threads(2).map(lambda *_: torch.is_grad_enabled(), [1, 1]) == [False, False]
    assert threads(4).map(lambda *_: torch.get_num_threads(), [1, 1]) == [2, 2]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("weights", [[9, 1], [0, 0], [7], []])
def test_what_cannot_be_shared_out_is_done_here(weights: list[int]) -> None:
    here = threads(2).map(lambda *_: threading.current_thread(), weights)
    assert here == [threading.main_thread()] * len(weights)


def test_no_more_at_once_than_there_is_room_for() -> None:
    assert threads(4).map(lambda *_: torch.get_num_threads(), [1] * 8, at_once=2) == [2] * 8
    assert (
        threads(4).map(lambda *_: threading.current_thread(), [1, 1], at_once=1)
        == [threading.main_thread()] * 2
    )


def test_an_error_ends_the_work() -> None:
    one = threads(2)

    def work(nets: Nets, k: int) -> None:
        if k == 1:
            raise ValueError("client 1")

    with pytest.raises(ValueError, match="client 1"):
        one.map(work, [1] * 50)
    assert one.map(lambda nets, k: k, [1, 1]) == [0, 1]  # the networks are back


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(StackedEngine, "narrow_on_cpu", True)
    monkeypatch.setattr("idiolect.engine.stacked.MIN_ACTIVATION_BYTES_TO_NARROW", 1)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("keep", ["auto", "host"])
@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedas", "fedavg_ft", "plga"])
@pytest.mark.usefixtures("narrow")
def test_threads_change_no_number(name: str, keep: str) -> None:
    ends = []
    method, data = methods.build({"name": name, "lr": 0.05}), ragged_federation()
    model = SmallNet()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        one = simulation(method, data, model, keep="auto" if threads == 1 else keep)
        assert one.engine.threads.max_threads == (threads if keep == "auto" else 1)  # type: ignore[attr-defined]
        ends.append((one.step(), one.step(), one.state()[0]))
    for a, b in pairwise(ends):
        for first, second in zip(a[:2], b[:2], strict=True):
            for column, values in first.clients.items():
                np.testing.assert_allclose(values, second.clients[column], rtol=1e-9)
        for leaf, value in a[2].items():
            torch.testing.assert_close(b[2][leaf], value, rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", ["fedavg", "per_fedavg"])
@pytest.mark.usefixtures("narrow")
def test_dropout_does_not_depend_on_threads_or_engine(name: str) -> None:
    """Every client draws from a generator of its own; per_fedavg has second derivatives."""
    method, data = methods.build({"name": name, "lr": 0.05}), ragged_federation()
    model = SmallNet(drop=0.5)
    ends = []
    for engine, threads in (("loop", 1), ("stacked", 1), ("stacked", 2), ("stacked", 2)):
        torch.set_num_threads(threads)
        one = simulation(method, data, model, engine=engine)
        if engine == "stacked":
            assert one.engine.threads.max_threads == threads  # type: ignore[attr-defined]
        one.step()
        one.step()
        ends.append(one.state()[0])
    for a, b in pairwise(ends):
        for leaf, value in a.items():
            torch.testing.assert_close(b[leaf], value, rtol=1e-9, atol=1e-12, equal_nan=True)


class Dropping(SmallNet):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


@pytest.mark.usefixtures("narrow")
def test_networks_that_draw_random_numbers_stay_in_one_thread() -> None:
    """PyTorch's generator is one for all threads; it is found out by trying, and left alone."""
    torch.set_num_threads(2)
    method, data = methods.build("fedavg"), ragged_federation()
    drops, plain = Dropping(), SmallNet()
    torch.manual_seed(5)
    assert simulation(method, data, drops).engine.threads.max_threads == 1  # type: ignore[attr-defined]
    assert simulation(method, data, plain).engine.threads.max_threads == 2  # type: ignore[attr-defined]
    after = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(3))
