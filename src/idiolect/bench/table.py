"""How long one whole cell of a paper's table takes: all its methods, three seeds each."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from idiolect.bench.job import Row
from idiolect.runs import compare
from idiolect.runs.execute import execute_together
from idiolect.runs.progress import Progress

METHODS = (
    *("fedavg_ft", "fedprox_ft", "fedper", "ditto", "lg_fedavg"),
    *("fedbabu", "fedproto", "fedala", "fedpac", "fedas"),
)
SEEDS = (0, 1, 2)
ROUNDS = 40
# FedAS, Table 3: CIFAR-10 over 20 clients by Dirichlet(0.1), everybody in every round.
CELL = {
    "data": {"name": "cifar10", "normalize": "fedas"},
    "split": {"name": "dirichlet", "clients": 20, "alpha": 0.1, "min_size": 40},
    "model": {"name": "fedas_cnn"},
    "participation": 1.0,
    "protocol": "fedas",
    "checkpoint_every": 1000,
}
TRAINING = ["method.lr=0.005", "method.epochs=5", "method.batch_size=16"]
QUICK_CELL = {
    "data": {"name": "digits"},
    "split": {"name": "dirichlet", "clients": 4, "alpha": 0.5},
    "model": {"name": "linear"},
    "participation": 1.0,
}


def table(
    device: str, quick: bool, rounds: int | None = None, dtype: str = "float32", only: str = ""
) -> Iterator[Row]:
    """A row per method: seconds of its three seeds from start to summary, data and captures
    included, and the mean accuracy; the last row is the whole cell. Methods run one after the
    other, the seeds of a method in one stack."""
    names = [n.strip() for n in only.split(",") if n.strip()] or list(
        METHODS[:2] if quick else METHODS
    )
    count = rounds or (1 if quick else ROUNDS)
    flags: dict[str, Any] = {**(QUICK_CELL if quick else CELL), "rounds": count}
    flags |= {"device": device, "dtype": dtype}
    total = 0.0
    for name in names:
        with tempfile.TemporaryDirectory(prefix="idiolect-bench-") as folder:
            began = time.perf_counter()
            given: Any = {"flags": flags, "sets": TRAINING, "as_published": True}
            plan = compare.plans([name], SEEDS, Path(folder), **given)
            configs, outs = [p.config for p in plan], [p.out for p in plan]
            done = execute_together(configs, outs, progress=Progress())
            seconds = time.perf_counter() - began
        total += seconds
        best = [100 * summary["accuracy"]["best"]["pooled"] for summary in done]
        row: Row = {"method": name, "seeds": len(SEEDS), "rounds": count, "dtype": dtype}
        yield row | {"seconds": seconds, "best_pooled": statistics.mean(best)}
    yield {"method": "all", "seeds": len(SEEDS), "rounds": count, "dtype": dtype, "seconds": total}
