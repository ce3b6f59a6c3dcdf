"""What two more seeds in the same stack cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from idiolect.bench.job import Job, Row, median_time, random_federation
from idiolect.bench.rounds import uneven
from idiolect.sweep import Sweep

SEEDS = (0, 1, 2)


def seeds(device: str, quick: bool) -> list[Row]:
    """Rounds of one seed against rounds of three seeds in one stack, evaluation included: FedAvg
    with the clients of `pfllib-round`, and PFLEGO with all of 100 clients of 600 samples."""
    sizes = uneven(3, 24, 36) if quick else uneven(20, 596, 4768)
    cnn = random_federation(sizes, (3, 32, 32), train_share=0.75)
    mlp = random_federation(np.full(100, 14 if quick else 700), (1, 28, 28), train_share=6 / 7)
    jobs = [
        Job({"model": "cnn"}, {"name": "fedavg", "batch_size": 16}, cnn),
        Job({"model": "mlp"}, {"name": "pflego"}, mlp, model="pflego_mlp"),
    ]
    if device == "cuda":
        wide = {"dtype": "tf32"}
        jobs.insert(1, replace(jobs[0], label={"model": "cnn, tf32"}, options=wide))
    repeats = 1 if quick else 7
    rows = []
    for job in jobs:
        one = median_time(job.simulation(device, repeats + 1).step, device, repeats)
        side_by_side = [job.simulation(device, repeats + 1, seed=s) for s in SEEDS]
        three = median_time(Sweep(side_by_side).step, device, repeats)
        about = {"method": job.method["name"], "clients": job.federation.n_clients}
        rows.append(job.label | about | {"one_s": one, "three_s": three, "ratio": three / one})
    return rows
