"""Rounds of two checkouts in turn, so that a busy machine slows both: `paired_rounds.py OLD NEW`.

OLD and NEW are `src` folders. A turn runs the jobs of `idiolect bench cpu` on a tenth of the data
and two of `pflego-table1`, full batches of clients of different sizes, with ten epochs, all in a
process of its own; the ratio is of the medians over all turns. IDIOLECT_DATA names the data.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json
try:
    from idiolect.bench.round_time import cpu_jobs
except ImportError:  # as it was called before
    from idiolect.bench.rounds import cpu_jobs
found = {}
for job in cpu_jobs(False, "cpu", 0.1):
    for engine in job.engines:
        sim = job.simulation("cpu", 6, engine)
        seconds = [sim.step().seconds for _ in range(4)]
        found[f"batch {job.label['batch']}, {engine}"] = seconds[1:]
from idiolect.papers import recipe
from idiolect.papers.cells import cells
from idiolect.runs.build import build
for cell in cells(recipe.read("pflego-table1")):
    if cell.seed == 0 and cell.column == "mnist-high" and cell.row in ("fedavg", "fedper"):
        config = cell.config | {"device": "cpu", "measure": {}}
        config["method"] = config["method"] | {"epochs": 10}
        sim = build(config)
        seconds = [sim.step().seconds for _ in range(4)]
        found[f"full batches, {cell.row}"] = seconds[1:]
print(json.dumps(found))
"""


def turn(source: Path) -> dict[str, list[float]]:
    env = os.environ | {"PYTHONPATH": str(source.resolve())}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True
    )
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    times: dict[str, dict[str, list[float]]] = {}
    for _ in range(given.turns):
        for which, source in (("old", given.old), ("new", given.new)):
            for job, seconds in turn(source).items():
                times.setdefault(job, {}).setdefault(which, []).extend(seconds)
    rows = []
    for job, both in times.items():
        old, new = (statistics.median(both[which]) for which in ("old", "new"))
        rows.append({"job": job, "old_s": old, "new_s": new, "ratio": new / old, "rounds": both})
        print(f"{job:20} {old:7.3f} {new:7.3f}  new/old {new / old:.2f}")
    if given.out is not None:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
