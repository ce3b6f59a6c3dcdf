"""Named benchmarks: how long a round takes, what stacking costs, how it grows.

Data is random (only time matters), made on the spot. Every timing is the median of repeated rounds
after a warm-up round, in which kernels are chosen and graphs captured; that round is given apart.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from idiolect import methods, models, tree
from idiolect.environment import machine
from idiolect.errors import did_you_mean
from idiolect.federation import Federation
from idiolect.rounds import Simulation
from idiolect.sweep import Sweep

Row = dict[str, Any]


@dataclass(frozen=True)
class Benchmark:
    """What it measures, and the function that does."""

    what: str
    run: Callable[[str, bool], list[Row]]


def run(name: str, device: str = "auto", quick: bool = False) -> dict[str, Any]:
    """One benchmark: its rows, and the machine they are from."""
    if name not in BENCHMARKS:
        raise did_you_mean(name, BENCHMARKS, "benchmark")
    device = device if device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    rows = BENCHMARKS[name].run(device, quick)
    about = {"name": name, "what": BENCHMARKS[name].what, "quick": quick}
    return about | {"rows": rows, "machine": machine(device)}


def _pfllib_round(device: str, quick: bool) -> list[Row]:
    """20 clients of 596 to 4,768 samples, 60,000 in all, three quarters for training."""
    whole = 596 + (4768 - 596) * (np.arange(20) / 19) ** 0.7355
    sizes = (whole * (0.01 if quick else 1.0)).astype(int)
    federation = _random_federation(sizes, (3, 32, 32), train_share=0.75)
    settings = {"lr": 0.005, "epochs": 5, "batch_size": 16}
    return [
        {"method": name, **_time_rounds({"name": name, **settings}, federation, device, 3)}
        for name in ("fedavg", "fedper", "fedas")
    ]


def _cpu(device: str, quick: bool) -> list[Row]:
    """MNIST-shaped: 20 clients, 52,492 training and 17,508 test samples, batch 128, one epoch."""
    sizes = (np.linspace(600, 6400, 20) * (0.01 if quick else 1.0)).astype(int)
    federation = _random_federation(sizes, (1, 28, 28), train_share=0.75)
    rows = []
    for engine in ("loop", "stacked"):
        section = {"name": "fedavg", "batch_size": 128}
        timed = _time_rounds(section, federation, device, 1 if device == "cpu" else 3, engine)
        rows.append({"engine": engine, **timed})
    return rows


def _tax(device: str, quick: bool) -> list[Row]:
    """A stacked round against one model trained on the same samples in one big batch."""
    rows = []
    shares = np.random.default_rng(0).dirichlet(np.full(20, 1.0))
    cases = {
        f"{10 if quick else 100} x 16": np.full(10 if quick else 100, 64 if quick else 640),
        "ragged 20": np.maximum(20, (shares * (800 if quick else 40_000)).astype(int)),
    }
    for case, sizes in cases.items():
        federation = _random_federation(sizes, (3, 32, 32), train_share=0.9)
        trained = int(federation.sizes("train").sum())
        section = {"name": "local", "batch_size": 16}
        stacked = _time_rounds(section, federation, device, 3, eval_every=1000)
        alone = _time_centralized(federation, device, 16 * len(sizes))
        rows.append(
            {
                "case": case,
                "samples": trained,
                "stacked_s": stacked["seconds"],
                "centralized_s": alone,
                "tax": stacked["seconds"] / alone,
            }
        )
    return rows


def _scale(device: str, quick: bool) -> list[Row]:
    """Cohorts of at most 100 out of N clients with 20 samples each, private heads."""
    rows = []
    for n in (10, 100, 1000) if quick else (10, 100, 1000, 10_000):
        federation = _random_federation(np.full(n, 24), (1, 28, 28), train_share=20 / 24)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        timed = _time_rounds(
            {"name": "fedper", "batch_size": 10},
            federation,
            device,
            3,
            model="pflego_mlp",
            participation=min(1.0, 100 / n),
            eval_every=1000,
        )
        peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None
        rows.append({"clients": n, "cohort": min(n, 100), **timed, "device_MiB": peak})
    return rows


def _sweep(device: str, quick: bool) -> list[Row]:
    """Rounds of three seeds in one stack against rounds of one, evaluation included."""
    rows = []
    cases: list[tuple[str, Row, str, np.ndarray, tuple[int, ...]]] = [
        ("MLP", {"name": "pflego"}, "pflego_mlp", np.full(100, 700), (1, 28, 28)),
        ("CNN", {"name": "fedavg"}, "fedas_cnn", np.linspace(500, 2500, 20), (3, 32, 32)),
    ]
    for network, section, model, sizes, shape in cases:
        whole = (0.05 * sizes[::10] if quick else sizes).astype(int)
        federation = _random_federation(whole, shape, train_share=0.85)
        sims = [_simulation(section, federation, device, 4, model=model, seed=s) for s in range(4)]
        one = _median(sims[0].step, device)
        three = _median(Sweep(sims[1:]).step, device)
        rows.append(
            {
                "clients": f"{len(whole)}, {network}",
                "one_s": one,
                "three_s": three,
                "ratio": three / one,
            }
        )
    return rows


def _server(device: str, quick: bool) -> list[Row]:
    """Server algebra on the flattened stack `[N, D]`."""
    rows = []
    for n, d in ((20, 10**6), (100, 10**6), (100, 10**5), (1000, 10**5)):
        d = d // 10 if quick else d
        stack = {"w": torch.randn(n, d, device=device)}
        weight = torch.softmax(torch.randn(n, n, device=device), 1)
        rows.append(
            {
                "clients": n,
                "parameters": d,
                "mix_s": _median(partial(tree.mix, weight, stack), device),
                "cosines_s": _median(partial(tree.cosines, stack), device),
                "distances_s": _median(partial(tree.square_distances, stack, stack), device),
            }
        )
    return rows


BENCHMARKS = {
    "pfllib-round": Benchmark(
        "seconds a round, evaluation of all clients included: 20 clients of 596 to 4,768 samples, "
        "CNN, batch 16, 5 epochs",
        _pfllib_round,
    ),
    "cpu": Benchmark(
        "seconds a round of FedAvg, MNIST-shaped, 20 clients, batch 128, one epoch", _cpu
    ),
    "tax": Benchmark("a stacked round against centralized big-batch training", _tax),
    "scale": Benchmark("seconds a round and device memory as the number of clients grows", _scale),
    "sweep": Benchmark("three seeds in one stack against one seed", _sweep),
    "server": Benchmark("server algebra against clients and parameters", _server),
}


def _random_federation(
    sizes: Sequence[int] | np.ndarray, shape: tuple[int, ...], train_share: float
) -> Federation:
    draw = torch.Generator().manual_seed(0)
    total = int(np.sum(sizes))
    x = torch.randint(0, 256, (total, *shape), dtype=torch.uint8, generator=draw)
    y = torch.randint(0, 10, (total,), generator=draw)
    owned = torch.arange(total).split([int(n) for n in sizes])
    cut = [max(1, int(len(rows) * train_share)) for rows in owned]
    train = tuple(rows[:c] for rows, c in zip(owned, cut, strict=True))
    test = tuple(rows[c:] for rows, c in zip(owned, cut, strict=True))
    return Federation(x, y, train, (), test, classes=10, mean=(0.5,), std=(0.5,))


def _simulation(
    section: dict[str, Any],
    federation: Federation,
    device: str,
    rounds: int,
    engine: str = "stacked",
    model: str = "fedas_cnn",
    seed: int = 0,
    **options: Any,
) -> Simulation:
    module = models.build({"name": model}, federation.shape, federation.classes, seed)
    options |= {"engine": engine, "device": device, "seed": seed}
    return Simulation(methods.build(section), federation, module, rounds=rounds, **options)


def _time_rounds(
    section: dict[str, Any],
    federation: Federation,
    device: str,
    repeats: int,
    engine: str = "stacked",
    model: str = "fedas_cnn",
    **options: Any,
) -> Row:
    sim = _simulation(section, federation, device, repeats + 2, engine, model, **options)
    done = [sim.step() for _ in range(repeats + 1)]
    seconds = statistics.median(r.seconds for r in done[1:])
    tested = statistics.median(r.seconds_eval for r in done[1:])
    return {
        "seconds": seconds,
        "evaluation_s": tested,
        "first_round_s": done[0].seconds,
        "samples_per_second": done[-1].samples / (seconds - tested),
    }


def _time_centralized(federation: Federation, device: str, batch: int) -> float:
    """One epoch of one model over all training samples, in CUDA graphs where there is a GPU."""
    module = models.build({"name": "fedas_cnn"}, federation.shape, 10, 0).to(device)
    weights: list[torch.Tensor] = list(module.parameters())
    x, y = federation.x.to(device), federation.y.to(device)
    rows = torch.cat(federation.train).to(device)
    at = torch.zeros(batch, dtype=torch.int64, device=device)

    def step() -> None:
        loss = F.cross_entropy(module(x[at].float() / 127.5 - 1), y[at])
        grads = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            torch._foreach_add_(weights, grads, alpha=-0.005)

    replay = _captured(step) if device == "cuda" else step
    cuts = [c for c in rows.split(batch) if len(c) == batch]

    def epoch() -> None:
        for cut in cuts:
            at.copy_(cut)
            replay()

    # The last partial batch is left out: charge it at the same rate.
    return _median(epoch, device) * len(rows) / max(1, sum(len(c) for c in cuts))


def _captured(step: Callable[[], None]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _median(work: Callable[[], Any], device: str, repeats: int = 3) -> float:
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])
