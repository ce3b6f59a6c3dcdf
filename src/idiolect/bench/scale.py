"""Growth with the number of clients, and with the size of the server's matrices."""

import gc
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch

from idiolect.bench.job import Job, Row, median_time, random_federation, time_rounds
from idiolect.core import tree
from idiolect.errors import UserError
from idiolect.methods.shared.simplex import combination
from idiolect.simulation.simulation import Simulation

SIZES, QUICK_SIZES = (1000, 10_000, 100_000), (10, 30, 100)
PIECE = 1000  # clients whose first state is made at once


def scale(device: str, quick: bool, clients: str = "", rounds: int | None = None) -> Iterator[Row]:
    """Rounds of cohorts of 100 out of N clients with 20 samples and a private model of 41,410
    parameters each (Ditto), kept on disk. Every client has its model before the first round;
    evaluation, which asks all of them, is left out."""
    cohort = 10 if quick else 100
    for n in _sizes(clients) or (QUICK_SIZES if quick else SIZES):
        federation = random_federation(np.full(n, 24), (1, 14, 14), train_share=20 / 24)
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        job = Job(
            {"clients": n, "cohort": min(n, cohort)},
            {"name": "ditto", "batch_size": 10},
            federation,
            model="pflego_mlp",
            rounds=rounds or (3 if quick else 20),
            options={"participation": min(1.0, cohort / n), "eval_every": 10**6, "keep": "disk"},
        )
        sim = job.simulation(device, job.rounds + 2)
        began = time.perf_counter()
        _give_everybody_a_state(sim)
        made = {"first_states_s": time.perf_counter() - began}
        timed = time_rounds(sim, job.rounds)
        del timed["evaluation_s"], timed["accuracy"]
        yield job.label | timed | made | _memory(device)


def _sizes(clients: str) -> tuple[int, ...]:
    words = [word.strip() for word in clients.split(",") if word.strip()]
    if not all(word.isdecimal() and int(word) for word in words):
        raise UserError(f"--clients takes numbers with commas between, not '{clients}'")
    return tuple(int(word) for word in words)


def _give_everybody_a_state(sim: Simulation) -> None:
    """A table makes and keeps the rows that it is asked for. They are on the disk when this ends:
    rounds would share it with their writing."""
    n = sim.federation.n_clients
    for at in range(0, n, PIECE):
        sim.mine[list(range(at, min(at + PIECE, n)))]
    os.sync()


def _memory(device: str) -> Row:
    """MiB: the device's peak; what this process holds in memory, without pages of files, which the
    system drops when it needs room; the blocks of its nameless files on disk."""
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    blocks: dict[int, int] = {}  # by file: a mapping has a number of its own
    for number in os.listdir("/dev/fd"):
        with suppress(OSError):  # the number under which they were listed
            file = os.fstat(int(number))
            if stat.S_ISREG(file.st_mode) and file.st_nlink == 0:
                blocks[file.st_ino] = file.st_blocks
    return {
        "device_MiB": None if peak is None else peak / 2**20,
        "host_MiB": _held(),
        "disk_MiB": sum(blocks.values()) * 512 / 2**20,
    }


def _held() -> float | None:
    """None where the system does not tell."""
    status = Path("/proc/self/status")
    words = status.read_text(encoding="utf-8").split() if status.exists() else []
    return int(words[words.index("RssAnon:") + 1]) / 2**10 if "RssAnon:" in words else None


def server(device: str, quick: bool) -> list[Row]:
    """Server algebra on the flattened stack `[N, D]`, and FedPAC's weights of heads."""
    rows = []
    sizes = ((20, 10**6), (100, 10**6), (100, 10**5), (1000, 10**5))
    for n, d in ((5, 1000), (10, 1000)) if quick else sizes:
        stack = {"w": torch.randn(n, d, device=device)}
        weight = torch.softmax(torch.randn(n, n, device=device), 1)
        v, h = torch.rand(n, device=device), torch.randn(n, 10, 64, device=device) / 10
        rows.append(
            {
                "clients": n,
                "parameters": d,
                "mix_s": median_time(partial(tree.mix, weight, stack), device),
                "cosines_s": median_time(partial(tree.cosines, stack), device),
                "distances_s": median_time(partial(tree.square_distances, stack, stack), device),
                "combination_s": median_time(partial(combination, v, h), device),
            }
        )
    return rows
