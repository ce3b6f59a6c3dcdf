"""One step of many networks: K clients in one stack, one by one, and one model on all samples."""

import gc
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idiolect import methods
from idiolect.bench.job import Row, chosen, wait
from idiolect.bench.net_zoo import CLASSES, WORDS, ZOO, NetEntry
from idiolect.data import Federation
from idiolect.engine import select
from idiolect.errors import UserError
from idiolect.simulation.simulation import Simulation

BATCH = 16
SIZES = (20, 100)  # clients
LR = 0.01
SLOW_WAYS = ("cannot be stacked", "batching rule", "cannot be captured")  # in warnings


def nets(device: str, quick: bool, dtype: str = "float32", only: str = "") -> Iterator[Row]:
    """Milliseconds of a step of each network: all clients in one stack, client by client (for the
    smaller number of clients), and one model with the samples of all in one batch, all in the
    same precision. `tax` is stacked divided by central, `distance` the largest relative distance
    between the stack's and the loop's models in float64. A network that fails has its reason in
    `error`."""
    for name in chosen(only, ZOO, "network"):
        distance: float | None = None
        for clients in (3,) if quick else SIZES:
            row: Row = {"net": name, "clients": clients, "batch": BATCH, "dtype": dtype}
            try:
                if distance is None:
                    distance = _distance(ZOO[name], device, quick)
                row |= _measured(ZOO[name], clients, device, quick, dtype)
                row["distance"] = distance
            except (RuntimeError, ValueError, NotImplementedError, UserError) as error:
                row["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            yield row
            give_back(device)


def _measured(entry: NetEntry, clients: int, device: str, quick: bool, dtype: str) -> Row:
    steps = 32 if device == "cuda" and not quick else 4 if device == "cuda" else 2
    federation = equal_clients(entry, clients, steps)
    module = _built(entry, quick)
    weights = sum(p.numel() for p in module.parameters() if p.requires_grad)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        sim = local_work(module, federation, device, dtype, "stacked", steps)
        stacked = step_ms(sim, steps, 1 if quick or device == "cpu" else 2, device)
    slow = [str(w.message) for w in seen if any(s in str(w.message) for s in SLOW_WAYS)]
    engine = sim.engine.name
    del sim
    give_back(device)
    loop = None
    if clients <= SIZES[0]:  # its time grows with the clients, which needs no measuring
        few = max(1, steps // 8)
        loop = step_ms(local_work(module, federation, device, dtype, "loop", few), few, 1, device)
        give_back(device)
    central = central_ms(module, federation, clients * BATCH, device, dtype)
    return {
        "parameters": weights,
        "central_ms": central,
        "stacked_ms": stacked,
        **({} if loop is None else {"loop_ms": loop}),
        "tax": stacked / central,
        "engine": engine,
        "fallbacks": len(slow),
        **({"warnings": slow} if slow else {}),
    }


def local_work(
    module: nn.Module, federation: Federation, device: str, dtype: str, engine: str, steps: int
) -> Simulation:
    method = methods.build({"name": "local", "lr": LR, "batch_size": BATCH, "steps": steps})
    return Simulation(
        method,
        federation,
        module,
        rounds=100,
        engine=engine,
        device=device,
        dtype=dtype,
        eval_every=1000,
    )


def step_ms(sim: Simulation, steps: int, rounds: int, device: str) -> float:
    """Median over rounds after a first one, in which kernels are chosen and graphs captured."""
    times = []
    for _ in range(rounds + 1):
        wait(device)
        began = time.perf_counter()
        sim.step()
        wait(device)
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times[1:]) / steps


def central_ms(
    module: nn.Module, federation: Federation, batch: int, device: str, dtype: str
) -> float:
    """One model, one batch: PyTorch's own layers, in a CUDA graph where there is a GPU."""
    select.allow_tf32(dtype, torch.device(device))
    module = module.train().to(device)
    weights: list[Tensor] = [p for p in module.parameters() if p.requires_grad]
    x, y = federation.x[:batch].to(device), federation.y[:batch].to(device)
    x = x if x.dtype == torch.int64 else x.float() / 127.5 - 1

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bf16"):
            loss = F.cross_entropy(module(x), y)
        grads = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            torch._foreach_add_(weights, grads, alpha=-LR)

    run = captured(step) if device == "cuda" else step
    run()
    repeats, times = (20, 5) if device == "cuda" else (1, 2), []
    for _ in range(repeats[1]):
        wait(device)
        began = time.perf_counter()
        for _ in range(repeats[0]):
            run()
        wait(device)
        times.append((time.perf_counter() - began) / repeats[0])
    return 1000 * statistics.median(times)


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """The step as a graph; as it is where it cannot be captured."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with suppress(RuntimeError):
        with torch.cuda.graph(graph):
            step()
        return graph.replay
    return step


def _distance(entry: NetEntry, device: str, quick: bool) -> float:
    """Between the engines after two steps in float64, relative to the largest weight."""
    module, clients = _built(entry, quick).double(), 3
    federation = equal_clients(entry, clients, 2)
    models = []
    for engine in ("loop", "stacked"):
        sim = local_work(module, federation, device, "float64", engine, 2)
        sim.step()
        models.append([sim.personal_model(i) for i in range(clients)])
        del sim
        give_back(device)
    worst = 0.0
    for one, other in zip(*models, strict=True):
        for name, value in one.items():
            if value.is_floating_point():
                gap = float((value - other[name]).abs().max() / value.abs().max().clamp_min(1))
                worst = math.nan if math.isnan(gap) else max(worst, gap)
    return worst


def _built(entry: NetEntry, quick: bool) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return entry.build(quick)


def equal_clients(entry: NetEntry, clients: int, steps: int) -> Federation:
    """Equal clients of random samples, as many as the steps need, and one to test."""
    each = BATCH * steps + 1
    draw = torch.Generator().manual_seed(0)
    size = (clients * each, *entry.shape)
    if entry.tokens:
        x = torch.randint(0, WORDS, size, generator=draw)
    else:
        x = torch.randint(0, 256, size, dtype=torch.uint8, generator=draw)
    y = torch.randint(0, CLASSES, (len(x),), generator=draw)
    owned = torch.arange(len(x)).split(each)
    half = None if entry.tokens else (0.5,)
    train, test = tuple(r[:-1] for r in owned), tuple(r[-1:] for r in owned)
    return Federation(x, y, train, (), test, classes=CLASSES, mean=half, std=half)


def give_back(device: str) -> None:
    """Graphs and stacks of earlier rows would take the memory of the next."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
