"""A job: a method on a federation that we time, and that a peer may run too."""

import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect import methods, models
from idiolect.data import Federation
from idiolect.data.build import divide
from idiolect.data.pool import Pool
from idiolect.data.splits import split
from idiolect.errors import did_you_mean
from idiolect.simulation.outcome import Round
from idiolect.simulation.simulation import Simulation

Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One line of settings; a row for each engine."""

    label: Row  # what tells its rows from others
    method: dict[str, Any]
    federation: Federation
    model: str = "fedas_cnn"
    rounds: int = 3
    engines: tuple[str, ...] = ("stacked",)
    options: dict[str, Any] = field(default_factory=dict)  # of the simulation
    peers: tuple[tuple[str, str], ...] = ()  # whose code does the same, its name for the method
    peer_rounds: int = 2  # after a first one

    def simulation(
        self, device: str, rounds: int, engine: str = "stacked", seed: int = 0
    ) -> Simulation:
        fed = self.federation
        module = models.build({"name": self.model}, fed.shape, fed.classes, seed)
        return Simulation(
            methods.build(self.method),
            fed,
            module,
            rounds=rounds,
            seed=seed,
            engine=engine,
            device=device,
            **self.options,
        )


def measure(job: Job, device: str, engine: str = "stacked") -> Row:
    """A simulation of the job, some rounds of it."""
    # With one round more than are done: the last one is tested in any case.
    return time_rounds(job.simulation(device, job.rounds + 2, engine), job.rounds)


def time_rounds(sim: Simulation, rounds: int) -> Row:
    """Median round after a first one, in which kernels are chosen and graphs captured."""
    done, cpu = [], []
    for _ in range(rounds + 1):
        began = time.process_time()
        done.append(sim.step())
        cpu.append(time.process_time() - began)
    seconds = statistics.median(r.seconds for r in done[1:])
    tested = statistics.median(r.seconds_eval for r in done[1:])
    return {
        "seconds": seconds,
        "evaluation_s": tested,
        "cpu_s": statistics.median(cpu[1:]),
        "first_round_s": done[0].seconds,
        "samples_per_second": done[-1].samples / (seconds - tested),
        "rounds": len(done),
        "accuracy": pooled(done[-1], "before"),
    }


def pooled(done: Round, series: str) -> float | None:
    """Share of all test samples that are classified correctly; None where it was not tested."""
    hits = done.clients[f"accuracy_{series}"] * done.clients["test_size"]
    share = float(hits.sum() / done.clients["test_size"].sum())
    return None if np.isnan(share) else share


def chosen(words: str, known: Collection[str], what: str) -> list[str]:
    """The names that are given with commas between; all if there are none."""
    names = [word.strip() for word in words.split(",") if word.strip()]
    for name in names:
        if name not in known:
            raise did_you_mean(name, known, what)
    return names or list(known)


def median_time(work: Callable[[], Any], device: str, repeats: int = 3) -> float:
    """Seconds of one call, after a first one."""
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        work()
        wait(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def wait(device: str) -> None:
    """Until the GPU has done what it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def random_federation(
    sizes: Sequence[int] | np.ndarray, shape: tuple[int, ...], train_share: float
) -> Federation:
    """Clients of these sizes with random samples: only time matters."""
    x, y = _random(int(np.sum(sizes)), shape)
    owned = torch.arange(len(y)).split([int(n) for n in sizes])
    cut = [max(1, int(len(rows) * train_share)) for rows in owned]
    train = tuple(rows[:c] for rows, c in zip(owned, cut, strict=True))
    test = tuple(rows[c:] for rows, c in zip(owned, cut, strict=True))
    return Federation(x, y, train, (), test, classes=10, mean=(0.5,), std=(0.5,))


def random_pool(samples: int, shape: tuple[int, ...]) -> Pool:
    """Random samples of ten classes, for a split to divide."""
    x, y = _random(samples, shape)
    part = np.zeros(samples, np.uint8)
    return Pool(x.numpy(), y.numpy(), part, classes=10, where="random", mean=(0.5,), std=(0.5,))


def dirichlet(pool: Pool, test_share: float = 0.25) -> Federation:
    """20 clients with class shares from Dir(0.1)."""
    options = {"clients": 20, "alpha": 0.1, "min_size": 4, "test_share": test_share}
    return divide(pool, split({"name": "dirichlet", **options}), seed=0)


def _random(samples: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (samples, *shape), dtype=torch.uint8, generator=draw)
    return x, torch.randint(0, 10, (samples,), generator=draw)
