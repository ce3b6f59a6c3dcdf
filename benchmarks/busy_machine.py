"""What a machine that is busy otherwise costs a run, by how PyTorch's threads wait for one another.

    python benchmarks/busy_machine.py [--turns 3] [--out benchmarks/results/busy-machine.json]

Every turn runs three jobs on networks small enough for one stack, each in a process of its own,
with GOMP_SPINCOUNT as PyTorch's OpenMP library has it (300000), as `idiolect` sets it, and with one
thread; first alone, then beside one process per core that only counts. A time is that of a round,
the median over turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from idiolect.__main__ import LOOKS
from idiolect.runs.environment import machine

WAYS = {
    "as PyTorch": {"GOMP_SPINCOUNT": "300000"},
    "as idiolect": {"GOMP_SPINCOUNT": LOOKS},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
JOBS = {  # method, clients, hidden units, rounds
    "fedas, 8 clients, 32 units": ("fedas", 8, 32, 20),
    "fedavg, 20 clients, 128 units": ("fedavg", 20, 128, 100),
    "fedavg, 40 clients, 256 units": ("fedavg", 40, 256, 60),
}
PROGRAM = """
import sys, time
from idiolect import data, methods
from idiolect.simulation.simulation import Simulation
from torch import nn
method, clients, units, rounds = sys.argv[1], *map(int, sys.argv[2:])
split = {"name": "dirichlet", "clients": clients, "alpha": 1.0}
federation = data.build({"name": "digits"}, split, seed=0)
net = nn.Sequential(nn.Flatten(), nn.Linear(64, units), nn.ReLU(), nn.Linear(units, 10))
sim = Simulation(methods.build({"name": method}), federation, net, rounds=rounds + 1, device="cpu")
sim.step()
began = time.perf_counter()
for _ in range(rounds):
    sim.step()
print((time.perf_counter() - began) / rounds)
"""
COUNTING = "while True: pass"


def seconds(job: tuple[str, int, int, int], way: dict[str, str]) -> float:
    """A round after the first one."""
    unset = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")
    env = {key: value for key, value in os.environ.items() if key not in unset} | way
    words = [sys.executable, "-c", PROGRAM, *map(str, job)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    for busy in (False, True):
        with ExitStack() as others:
            for _ in range((os.cpu_count() or 1) if busy else 0):
                other = others.enter_context(subprocess.Popen([sys.executable, "-c", COUNTING]))
                others.callback(other.kill)
            for name, job in JOBS.items():
                turns = [
                    {k: seconds(job, way) for k, way in WAYS.items()} for _ in range(given.turns)
                ]
                found = {k: statistics.median(turn[k] for turn in turns) for k in WAYS}
                rows.append({"job": name, "busy": busy, "seconds": found, "turns": turns})
                told = "  ".join(f"{k} {1000 * s:7.1f} ms" for k, s in found.items())
                print(f"{'busy' if busy else 'alone':6} {name:32} {told}", flush=True)
    if given.out is not None:
        text = json.dumps({"machine": machine("cpu"), "rows": rows}, indent=1)
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
