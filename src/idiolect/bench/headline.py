"""The headline benchmark of pfl-research: CIFAR-10, 1,000 IID users of 50 samples, 1,500 rounds.

The settings are those of its published configuration (`baseline.yaml` of its image classification
benchmark): 50 users a round, weighted equally, one local epoch of SGD with batch 10 and learning
rate 0.1 over the samples in stored order, server learning rate 1 (so the new model is the mean of
the trained ones), channels normalised by the training images' own mean and deviation, `simple_cnn`
with its dropout, and every 10 rounds the model tested on the 10,000 test images. Those images are
dealt to the users here, ten each: a model that all users share is tested on all of them in one
pass. Users of a round are drawn without replacement, there with. On a GPU PyTorch multiplies in
TF32 in convolutions unless it is told not to, and there it is not: so both are timed here.
"""

import statistics
import time
from dataclasses import replace

import torch

from idiolect.bench.job import Job, Row, pooled, random_federation, wait
from idiolect.data import Federation, build


def headline_jobs(quick: bool, device: str = "cpu") -> list[Job]:
    """Real CIFAR-10, which must be there; the quick form has a few users with random samples."""
    users, cohort = (12, 4) if quick else (1000, 50)
    if quick:
        federation = random_federation([60] * users, (3, 32, 32), train_share=50 / 60)
    else:
        federation = _own_scale(build({"name": "cifar10"}, {"name": "iid", "clients": users}, 0))
    settings = {"lr": 0.1, "batch_size": 10, "order": "fixed", "weighting": "uniform"}
    data = "random" if quick else "cifar10"
    dtypes = ("float32", "tf32") if device == "cuda" else ("float32",)
    return [
        Job(
            {"data": data, "users": users, "cohort": cohort, "dtype": dtype},
            {"name": "fedavg", **settings},
            federation,
            model="simple_cnn",
            rounds=3 if quick else 1500,
            options={"participation": cohort / users, "eval_every": 10, "dtype": dtype},
            peers=(("pfl", "fedavg"),) if dtype == dtypes[-1] else (),
            peer_rounds=2 if quick else 30,
        )
        for dtype in dtypes
    ]


def measure(job: Job, device: str, engine: str = "stacked") -> Row:
    """The mean round after the first one, evaluations included; `plain_s` is the median round
    without evaluation, `total_s` everything from the first round to the last."""
    began = time.perf_counter()
    sim = job.simulation(device, job.rounds, engine)
    setup = time.perf_counter() - began
    began, cpu = time.perf_counter(), time.process_time()
    done = [sim.step()]
    first = time.perf_counter() - began
    done += [sim.step(wait=False) for _ in range(job.rounds - 1)]
    wait(device)
    total = time.perf_counter() - began
    others = [one.settle() for one in done[1:]]
    return {
        "rounds": job.rounds,
        "seconds": (total - first) / (job.rounds - 1),
        "plain_s": statistics.median(r.seconds for r in others if not r.seconds_eval),
        "evaluation_s": sum(r.seconds_eval for r in done) / job.rounds,
        "cpu_s": (time.process_time() - cpu) / job.rounds,
        "total_s": total,
        "setup_s": setup,
        "first_round_s": first,
        "accuracy": pooled(done[-1], "global"),
        "curve": [[r.round, pooled(r, "global")] for r in done if r.seconds_eval],
    }


def _own_scale(federation: Federation) -> Federation:
    """Normalised by the mean and deviation of its own training samples."""
    x = federation.x[torch.cat(federation.train)].double() / 255
    mean, std = x.mean((0, 2, 3)), x.std((0, 2, 3), correction=0)
    return replace(federation, mean=tuple(mean.tolist()), std=tuple(std.tolist()))
