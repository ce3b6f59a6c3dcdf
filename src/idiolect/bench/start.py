"""From a fresh process to its first round."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from idiolect.bench.job import Row
from idiolect.data import datasets, places
from idiolect.errors import UserError

STARTS = 5  # after a first one
DATA = {
    "digits": ["--data", "digits"],
    "cifar10": ["--data", "cifar10", "--split", "dirichlet", "--clients", "20"],
}


def start(device: str, quick: bool, dtype: str = "float32") -> Iterator[Row]:
    """Programs that are started, one after the other: `first_s` for the first of them, which finds
    no decoded data, no kernels and no choice among them in the caches, then the median of five.

    `seconds` is how long `import torch` and `--help` take as a whole, and after how long a run of
    FedAvg begins its first round; the test of the untrained models before it is `evaluation_s`.
    The first round, in which steps are captured on a GPU, is `first_round_s`, the second
    `second_round_s`.
    """
    torch = [sys.executable, "-c", "import torch"]
    program = [sys.executable, "-m", "idiolect"]
    count = 1 if quick else STARTS
    with tempfile.TemporaryDirectory(prefix="idiolect-bench-") as folder:
        home = Path(folder)
        for what, command in (("import torch", torch), ("--help", [*program, "--help"])):
            taken = [_ended(command, home) for _ in range(count + 1)]
            yield {"what": what, "first_s": taken[0], "seconds": statistics.median(taken[1:])}
        for name, given in {"digits": DATA["digits"]}.items() if quick else DATA.items():
            if datasets.dataset({"name": name}).find() is None:
                yield {"what": f"run, {name}: not found"}
                continue
            how = [*given, "--rounds", "2", "--device", device, "--dtype", dtype]
            command = [*program, "run", "fedavg", *how, "--out"]
            rows = [_rounds([*command, str(home / f"{name}{k}")], home) for k in range(count + 1)]
            usual = {key: statistics.median(row[key] for row in rows[1:]) for key in rows[0]}
            yield {"what": f"run, {name}", "first_s": rows[0]["seconds"]} | usual


def _ended(command: Sequence[str], home: Path) -> float:
    """Seconds until the program is done, with caches of its own below `home`."""
    began = time.perf_counter()
    done = subprocess.run(command, env=_environment(home), capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}")
    return time.perf_counter() - began


def _rounds(command: Sequence[str], home: Path) -> dict[str, float]:
    """What the run wrote down of its rounds, by the clock."""
    began = time.time()
    _ended(command, home)
    lines = (Path(command[-1]) / "events.jsonl").read_text(encoding="utf-8").splitlines()
    untrained, first, second = (json.loads(line) for line in lines)
    return {
        "seconds": first["time"] - first["seconds"] - began,
        "evaluation_s": untrained["seconds_eval"],
        "first_round_s": first["seconds"],
        "second_round_s": second["seconds"],
    }


def _environment(home: Path) -> dict[str, str]:
    """This process's, with empty caches. Python keeps its bytecode, as it does unless told not to:
    reading the source anew is no part of a second start."""
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    data = inherited.get("IDIOLECT_DATA") or str(places.cache_dir() / "data")
    caches = {"XDG_CACHE_HOME": "", "IDIOLECT_CACHE": "idiolect", "TRITON_CACHE_DIR": "triton"}
    return inherited | {k: str(home / v) for k, v in caches.items()} | {"IDIOLECT_DATA": data}
