"""What two more seeds in the same stack cost."""

from dataclasses import replace

import numpy as np

from idiolect.bench.job import Job, Row, median_time, random_federation
from idiolect.bench.round_time import pfllib_jobs
from idiolect.simulation.side_by_side import Sweep

SEEDS = (0, 1, 2)


def seeds(device: str, quick: bool) -> list[Row]:
    """Rounds of one seed against rounds of three seeds in one stack, evaluation included: FedAvg on
    the job of `pfllib-round`, and with one epoch of it; PFLEGO with all of 100 clients of 600
    samples."""
    repeats = 1 if quick else 5
    rows = []
    for job in _jobs(device, quick):
        one = median_time(job.simulation(device, repeats + 1).step, device, repeats)
        side_by_side = [job.simulation(device, repeats + 1, seed=s) for s in SEEDS]
        three = median_time(Sweep(side_by_side).step, device, repeats)
        about = {
            "method": job.method["name"],
            "clients": job.federation.n_clients,
            "epochs": job.method.get("epochs"),
        }
        rows.append(job.label | about | {"one_s": one, "three_s": three, "ratio": three / one})
    return rows


def _jobs(device: str, quick: bool) -> list[Job]:
    fedavg = [job for job in pfllib_jobs(quick, device) if job.method["name"] == "fedavg"]
    jobs = [
        replace(job, label={"model": ", ".join(["cnn", *job.options.values()])}) for job in fedavg
    ]
    jobs.insert(1, replace(jobs[0], method=jobs[0].method | {"epochs": 1}))
    mlp = random_federation(np.full(100, 14 if quick else 700), (1, 28, 28), train_share=6 / 7)
    return [*jobs, Job({"model": "mlp"}, {"name": "pflego"}, mlp, model="pflego_mlp")]
