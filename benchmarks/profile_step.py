"""Where the time of one training step goes, on a GPU: kernels of a stack of K clients.

python benchmarks/profile_step.py [--clients 20] [--batch 16] [--model fedas_cnn] [--dtype float32]
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from idiolect import methods, models
from idiolect.bench.job import random_federation
from idiolect.simulation.simulation import Simulation

STEPS = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--model", default="fedas_cnn")
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("this machine has no GPU", file=sys.stderr)
        return 2
    sizes = np.full(given.clients, given.batch * 12)
    data = random_federation(sizes, (3, 32, 32), train_share=0.9)
    method = methods.build({"name": "fedavg", "batch_size": given.batch})
    model = models.build({"name": given.model}, data.shape, data.classes, 0)
    options = {"device": "cuda", "dtype": given.dtype, "eval_every": 1000}
    sim = Simulation(method, data, model, rounds=3, **options)
    sim.step()  # kernels are chosen and the step is captured
    (step,) = sim.engine.captured_steps.captured
    graph = step.graphs[given.clients]
    step.counter.zero_()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(STEPS):
        graph.replay()
    end.record()
    end.synchronize()
    print(f"one step: {1000 * begin.elapsed_time(end) / STEPS:.0f} us")
    step.counter.zero_()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(STEPS):
            graph.replay()
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda row: -row.self_device_time_total)
    for row in rows:
        spent = row.self_device_time_total / STEPS
        print(f"{spent:9.1f} us {row.count / STEPS:5.1f} x {row.key[:80]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
