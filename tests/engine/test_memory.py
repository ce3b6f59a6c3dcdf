"""A cohort is cut into groups that fit the memory, by measurement; the numbers do not notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idiolect import methods
from idiolect.core import devices
from idiolect.core.method import Down, Record
from idiolect.engine.memory import Chunks
from idiolect.errors import UserError
from idiolect.methods.fedavg import FedAvg
from idiolect.simulation.schedule import Stragglers
from idiolect.simulation.simulation import Simulation
from tests.conftest import SmallNet, ragged_federation, simulation
from tests.test_every_method import close

RAGGED = ragged_federation((24, 30, 7, 40, 33, 17, 65))


@dataclass
class Pretended:
    """A device on which k clients take `once + k * each` bytes and leave `k * stays`."""

    size: int
    each: float
    once: float = 0.0
    stays: float = 0.0
    used: float = 0.0
    worst: float = 0.0
    looks: int = 0
    measured: int = 0
    group: int = 0

    def free(self) -> int:
        self.looks += 1
        return int(self.size - self.used)

    def begin(self) -> None:
        self.measured += 1

    def peak(self) -> int:
        return int(self.once + self.group * self.each)

    def kept(self) -> int:
        return int(self.group * self.stays)

    def work(self, group: range) -> None:
        self.group = len(group)
        self.worst = max(self.worst, self.used + self.peak())
        self.used += self.kept()


def round_of(chunks: Chunks, meter: Pretended, sizes: list[int], guess: float = 100.0) -> list[int]:
    groups = []
    meter.used = 0.0
    for group in chunks.cut(sizes, lambda n: guess):
        meter.work(group)
        groups.append(len(group))
    assert sum(groups) == len(sizes)
    return groups


def test_a_small_cohort_is_one_group_and_not_measured() -> None:
    meter = Pretended(10_000, each=1)
    chunks = Chunks(meter)
    assert [round_of(chunks, meter, [5] * 20, guess=10.0) for _ in range(9)] == [[20]] * 9
    assert (meter.looks, meter.measured) == (1, 0)


@pytest.mark.parametrize("guess", [30.0, 100.0, 1000.0])
def test_groups_are_as_large_as_the_memory_allows(guess: float) -> None:
    """Careful first, then by what was measured; the first group's own cost does not stick."""
    meter = Pretended(10_000, each=100, once=500, stays=5)
    chunks = Chunks(meter)
    rounds = [round_of(chunks, meter, [5] * 240, guess) for _ in range(6)]
    assert meter.worst <= meter.size
    assert rounds[-1] == rounds[-2] and max(rounds[-1]) - min(rounds[-1][:-1]) == 0
    assert 40 <= max(rounds[-1]) <= 75


def test_the_plan_holds_while_the_memory_wavers() -> None:
    meter = Pretended(10_000, each=100)
    chunks = Chunks(meter)
    for _ in range(3):
        round_of(chunks, meter, [5] * 200)
    groups = []
    for size in (10_000, 9_900, 10_400, 9_950):
        meter.size = size
        groups.append(round_of(chunks, meter, [5] * 200))
    assert len({tuple(g) for g in groups}) == 1


def test_larger_clients_are_met_with_care() -> None:
    meter = Pretended(10_000, each=100)
    chunks = Chunks(meter)
    round_of(chunks, meter, [10] * 100)
    larger = chunks.cut([20] * 100, lambda n: 100.0)
    assert next(larger) == range(34)  # might need twice as much


def test_results_that_do_not_fit_are_one_clear_line() -> None:
    meter = Pretended(10_000, each=100, stays=50)
    chunks = Chunks(meter)
    with pytest.raises(UserError, match=r"results of 300 clients need .* lower --participation"):
        round_of(chunks, meter, [5] * 300)


def test_without_a_measurement_the_guess_decides() -> None:
    class Blind(Pretended):
        def peak(self) -> None:  # type: ignore[override]
            return None

    meter = Blind(10_000, each=100)
    chunks = Chunks(meter)
    meter.work = lambda group: None  # type: ignore[method-assign]
    assert round_of(chunks, meter, [5] * 100) == [25, 25, 25, 25]


def test_this_machine_has_memory() -> None:
    assert devices.free_memory(torch.device("cpu")) > 1 << 20


# --- the numbers ---


def linked(net: Any, params: Any, x: Tensor, y: Tensor) -> Tensor:
    """The samples of a batch depend on one another."""
    logits = net(params, x)
    return F.cross_entropy(logits, y) + 0.1 * (logits - logits.mean(0)).square().mean()


@dataclass(frozen=True)
class Coupled(FedAvg):
    def fit(self, down: Record, mine: Record, local: Any) -> tuple[Record, Record]:
        return {"model": self.train(local, down["model"], linked, coupled=True)}, {}


def begin(method: Any, norm: bool, share: int) -> Simulation:
    """`share` clients fit into the memory at once, as far as anybody knows."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = SmallNet(norm=norm)
    late = Stragglers(periods=(1, 2)) if method.asynchronous else None
    sim = simulation(method, RAGGED, model, 3, stragglers=late)
    sim.engine.chunks = Chunks(Pretended(100 * share, each=75))
    sim.engine.guess = lambda n: 25.0  # type: ignore[method-assign]
    return sim


def finished(sim: Simulation) -> tuple[dict[str, Tensor], list[int]]:
    sizes: list[int] = []
    groups = sim.engine.groups

    def seen(ids: Any) -> Iterator[list[int]]:
        for group in groups(ids):
            sizes.append(len(group))
            sim.engine.chunks.meter.group = len(group)  # type: ignore[attr-defined]
            yield group

    sim.engine.groups = seen  # type: ignore[method-assign]
    sim.start()
    for _ in range(3):
        sim.step()
    return sim.state()[0], sizes


CASES = {name: methods.build({"name": name}) for name in ("fedas", "feddwa", "spfl", "pflego")}
CASES |= {
    name: methods.build({"name": name}) for name in ("plga", "fedala", "per_fedavg", "fedpac")
}
CASES |= {"coupled": Coupled(batch_size=8), "ditto": methods.build({"name": "ditto"})}


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_numbers_do_not_depend_on_the_groups(name: str, norm: bool) -> None:
    whole, all_of_it = finished(begin(CASES[name], norm, 1000))
    cut, sizes = finished(begin(CASES[name], norm, 2))
    assert max(sizes) <= 3 < max(all_of_it)
    assert set(whole) == set(cut)
    for leaf, value in whole.items():
        close(value, cut[leaf], f"{name}: {leaf}")


def test_evaluation_goes_in_pieces(small_net: nn.Module, monkeypatch: Any) -> None:
    sim = simulation(methods.build({"name": "local"}), RAGGED, small_net, 1)
    sim.step()
    ids, params = list(range(7)), sim._personal(list(range(7)))
    whole = sim.engine.evaluate(params, ids, "test")
    asked: list[int] = []
    monkeypatch.setattr(torch, "vmap", _counting(torch.vmap, asked))
    sim.engine.chunks = Chunks(Pretended(1200, each=0))
    sim.engine.guess = lambda n: 100.0  # type: ignore[method-assign]
    pieces = sim.engine.evaluate(params, ids, "test")
    assert asked == [3, 3]  # the last one alone is no stack
    assert torch.equal(whole[0], pieces[0])
    torch.testing.assert_close(whole[1], pieces[1], rtol=1e-12, atol=0)


def _counting(vmap: Any, asked: list[int]) -> Any:
    def counted(fn: Any, *args: Any, **options: Any) -> Any:
        made = vmap(fn, *args, **options)

        def called(params: Any, *rest: Any) -> Any:
            asked.append(len(next(iter(params.values()))))
            return made(params, *rest)

        return called

    return counted


def test_the_guess_covers_models_and_activations(small_net: nn.Module) -> None:
    engine = simulation(methods.build({"name": "fedavg"}), RAGGED, small_net, 1).engine
    model, activations, tensors = engine._footprint
    assert tensors > 4 and model == 8 * sum(p.numel() for p in small_net.parameters())
    assert activations > 8 * 4 * 10 * 10  # at least what the first convolution makes
    assert engine.guess(10) < engine.guess(100) < engine.guess(512) == engine.guess(5000)


def test_downloads_need_not_know(small_net: nn.Module) -> None:
    """Shared and per-client parts of a message are cut alike."""
    engine = begin(CASES["fedas"], False, 2).engine
    down = Down({"a": torch.arange(3.0)}, {"b": torch.arange(7.0)}).stacked(7)
    parts: list[Any] = []
    done = engine.run(range(7), 0, lambda *given: (parts.append(given), {"row": given[1]})[1], down)
    assert len(parts) > 1 and torch.equal(done["row"]["b"], torch.arange(7.0))
    assert all(p[1]["a"].shape == (len(p[0].ids), 3) for p in parts)
