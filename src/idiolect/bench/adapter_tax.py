"""Many clients' adapters on one large network: time and memory against one model."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from idiolect import models
from idiolect.bench import nets
from idiolect.bench.job import Row
from idiolect.bench.net_zoo import CLASSES, IMAGE, NetEntry
from idiolect.errors import UserError

ADAPT = "lora:8,head"
VIT = {"name": "vit", "width": 512, "depth": 16, "heads": 8, "patch": 8}  # 50 M parameters
SMALL = {"name": "vit", "width": 32, "depth": 2, "heads": 2, "patch": 8}


def adapters(device: str, quick: bool, dtype: str = "float32") -> Iterator[Row]:
    """A step of K clients of 16 samples each, who train adapters of rank 8 and a head on one frozen
    network, against a step of one model on the samples of all: with one set of adapters (`one`, and
    `tax` is the stack divided by it), and with all its weights (`full`). `MiB` are the most that
    tensors took on the GPU, network and samples included; `memory` is that of the stack divided by
    that of `one`."""
    section = SMALL if quick else VIT
    entry = NetEntry(lambda _: _network(section, ADAPT), IMAGE)
    for clients in (3,) if quick else nets.SIZES:
        row: Row = {"net": section["name"], "adapt": ADAPT, "clients": clients}
        row |= {"batch": nets.BATCH, "dtype": dtype}
        try:
            row |= _measured(section, entry, clients, device, quick, dtype)
        except (RuntimeError, ValueError, NotImplementedError, UserError) as error:
            row["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        yield row
        nets.give_back(device)


def _measured(
    section: dict[str, Any], entry: NetEntry, clients: int, device: str, quick: bool, dtype: str
) -> Row:
    steps = 16 if device == "cuda" and not quick else 4 if device == "cuda" else 2
    federation = nets.equal_clients(entry, clients, steps)
    together = clients * nets.BATCH
    found: Row = {}
    for name, adapt in (("one", ADAPT), ("full", "")):
        module = _network(section, adapt)
        sizes = [(p.numel(), p.requires_grad) for p in module.parameters()]
        if adapt:
            found["frozen"] = sum(n for n, trains in sizes if not trains)
            found["trained"] = sum(n for n, trains in sizes if trains)
        step = partial(nets.central_ms, module, federation, together, device, dtype)
        found |= _peak(name, device, step)
        del module, step

    def stacked() -> float:
        sim = nets.local_work(_network(section, ADAPT), federation, device, dtype, "stacked", steps)
        found["engine"] = sim.engine.name
        return nets.step_ms(sim, steps, 1 if quick or device == "cpu" else 3, device)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found |= _peak("stacked", device, stacked)
    slow = [str(w.message) for w in seen if any(s in str(w.message) for s in nets.SLOW_WAYS)]
    found["tax"] = found["stacked_ms"] / found["one_ms"]
    if device == "cuda":
        found["memory"] = found["stacked_MiB"] / found["one_MiB"]
    return found | ({"warnings": slow} if slow else {})


def _peak(name: str, device: str, work: Callable[[], float]) -> Row:
    """Milliseconds of a step, and the most memory that the work took."""
    nets.give_back(device)
    if device != "cuda":
        return {f"{name}_ms": work()}
    torch.cuda.reset_peak_memory_stats()
    done: Row = {f"{name}_ms": work()}
    done[f"{name}_MiB"] = torch.cuda.max_memory_allocated() / 2**20
    done[f"{name}_reserved_MiB"] = torch.cuda.max_memory_reserved() / 2**20
    nets.give_back(device)
    return done


def _network(section: dict[str, Any], adapt: str) -> nn.Module:
    return models.build(section | ({"adapt": adapt} if adapt else {}), IMAGE, CLASSES)
