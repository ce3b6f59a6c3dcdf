"""Growth with the number of clients, and with the size of the server's matrices."""

import gc
import resource
import sys
from functools import partial

import numpy as np
import torch

from idiolect.bench.job import Job, Row, measure, median_time, random_federation
from idiolect.core import tree
from idiolect.methods.shared.simplex import combination


def scale(device: str, quick: bool) -> list[Row]:
    """Cohorts of at most 100 out of N clients with 20 samples and a private model each; data and
    state off the device."""
    rows = []
    for n in (10, 100, 1000) if quick else (10, 100, 1000, 10_000):
        federation = random_federation(np.full(n, 24), (1, 28, 28), train_share=20 / 24)
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        job = Job(
            {},
            {"name": "ditto", "batch_size": 10},
            federation,
            model="pflego_mlp",
            options={"participation": min(1.0, 100 / n), "eval_every": 1000, "keep": "host"},
        )
        timed = measure(job, device)
        peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None
        unit = 2**20 if sys.platform == "darwin" else 2**10
        host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit  # the peak so far
        memory = {"device_MiB": peak, "host_MiB": host}
        rows.append({"clients": n, "cohort": min(n, 100), **timed, **memory})
    return rows


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
