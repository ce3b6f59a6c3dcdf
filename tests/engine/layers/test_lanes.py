"""Branches of a captured step. Streams are stood in for by lists of what was started on them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest
import torch
from torch import Tensor

from idiolect.engine.layers import lanes, linear, steps_inside
from idiolect.engine.layers.lanes import Lanes
from idiolect.engine.layers.steps_inside import StepsInside


class Stream:
    """Its work, each piece a set of all that has to be done before."""

    def __init__(self) -> None:
        self.before: set[str] = set()

    def wait_stream(self, other: Self) -> None:
        self.before |= other.before


class Streams:
    """As of `torch.cuda` while a graph is captured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.main = self.current = Stream()
        self.sides: dict[int, Stream] = {}
        self.order: dict[str, set[str]] = {}  # piece of work -> what it waited for
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self._entered)
        monkeypatch.setattr(lanes, "_stream", self._side)

    def _side(self, device: int, lane: int) -> Stream:
        return self.sides.setdefault(lane, Stream())

    @contextmanager
    def _entered(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def start(self, name: str, result: Any = None) -> Any:
        self.order[name] = set(self.current.before)
        self.current.before.add(name)
        return result


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    return Streams(monkeypatch)


def test_a_lane_waits_for_the_main_line_and_not_the_other_way_round(streams: Streams) -> None:
    beside = Lanes()
    streams.start("loss")
    beside.run(0, lambda: streams.start("parts"))
    beside.run(1, lambda: streams.start("sum"))
    streams.start("inputs")
    beside.run(0, lambda: streams.start("step"))
    assert streams.order["parts"] == {"loss"}
    assert streams.order["sum"] == {"loss"}  # lanes do not wait for each other
    assert streams.order["inputs"] == {"loss"}
    assert streams.order["step"] == {"loss", "parts", "inputs"}
    beside.join()
    streams.start("next")
    assert streams.order["next"] == {"loss", "parts", "sum", "inputs", "step"}


def test_what_a_lane_reads_is_kept_until_all_join(streams: Streams) -> None:
    beside, x = Lanes(), torch.zeros(3)
    found = beside.run(0, lambda x: x + 1, x)
    assert [(given[0] is x, out is found) for given, out in beside._kept] == [(True, True)]
    beside.join()
    assert not beside._kept


def test_large_work_stays_on_the_main_line(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "MAX_VALUES_KEPT", 2)
    beside = Lanes()
    beside.run(0, lambda x: streams.start("large"), torch.zeros(3))
    streams.start("next")
    assert "large" in streams.order["next"] and not beside._kept


def test_steps_of_the_same_weights_share_a_lane(streams: Streams) -> None:
    first, second = torch.zeros(2, 3), torch.zeros(2, 3)
    inside = StepsInside({"first": first, "second": second})
    for name, w in (("a", first), ("b", second), ("c", first)):
        inside.add(w, lambda name=name: streams.start(name))
    streams.start("shrunk")
    inside.take()
    assert streams.order == {"shrunk": set(), "a": {"shrunk"}, "b": {"shrunk"},
                             "c": {"shrunk", "a"}}  # fmt: skip
    assert streams.main.before == {"shrunk", "a", "b", "c"}


def test_without_a_capture_all_is_one_line() -> None:
    seen: list[str] = []
    beside = Lanes()
    assert beside.run(0, lambda x: seen.append("a") or x, 3 * torch.ones(1)) == 3
    beside.run(1, lambda: seen.append("b"))
    beside.join()
    assert seen == ["a", "b"] and not beside._kept


def test_a_bias_steps_by_its_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU; here it is made to on a CPU."""
    monkeypatch.setattr(steps_inside, "pays", lambda g: True)
    torch.manual_seed(0)
    x, w = torch.randn(2, 5, 3).double(), torch.randn(2, 4, 3).double()
    bias = torch.randn(2, 4).double()

    def loss(w: Tensor, bias: Tensor) -> Tensor:
        out = linear.Product.apply(x, w, bias)
        return linear.Product.apply(out.tanh(), w.transpose(1, 2).contiguous(), None).square().sum()

    leaves = [v.clone().requires_grad_() for v in (w, bias)]
    true = torch.autograd.grad(loss(*leaves), leaves)
    with StepsInside({"w": w, "bias": bias}) as inside:
        mine = [v.detach().requires_grad_() for v in (w, bias)]
        grads = torch.autograd.grad(loss(*mine), mine, allow_unused=True)
    before = bias.clone()
    assert grads[1] is None and set(inside.names) == {"w", "bias"}
    inside.take()
    torch.testing.assert_close(bias, before - true[1])
    torch.testing.assert_close(leaves[0] - true[0], w - grads[0])
