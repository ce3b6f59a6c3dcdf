"""Whether `idiolect advise` chooses well: its choice against the best method, on test samples.

    OMP_NUM_THREADS=1 python benchmarks/advise_check.py [--out benchmarks/results/advise.json]

For every setting: the advice (seeds 0 and 1, its own number of rounds, validation samples only),
then a comparison of the same methods with 60 rounds and the seeds 2, 3 and 4 on test samples, where
clients train on all their training samples. The gap is the mean test accuracy over clients of the
best method less that of the chosen one, in points; where the metric is an error, in percent of the
best one's. The other seeds mean that splits by Dirichlet, shards and classes deal other clients,
with another start, than those the advice saw. IDIOLECT_DATA names the folder with mnist and
femnist. `--design` runs the settings on which methods, rounds and thresholds of `advise` were
fixed; they are not among the evidence.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from idiolect.core import files
from idiolect.runs.environment import commit, machine
from idiolect.runs.tournament import METHODS

ROUNDS, SEEDS, WITHIN = 60, "2,3,4", 1.0
SHARED = (
    *("--model", "mlp", "--set", "model.hidden=32"),
    *("--set", "method.lr=0.1", "--set", "method.batch_size=16"),
)
MNIST = ("--data", "mnist", "--set", "data.sample=[1500,500]")


def digits(split: str, clients: int, *sets: str) -> tuple[str, ...]:
    words = ["--data", "digits", "--split", split, "--clients", str(clients)]
    return (*words, *(word for one in sets for word in ("--set", one)))


DESIGN = {
    "digits, Dirichlet 0.2, 20 clients": digits("dirichlet", 20, "split.alpha=0.2"),
    "MNIST sample, Dirichlet 1, 15 clients": (
        *MNIST, "--split", "dirichlet", "--clients", "15", "--set", "split.alpha=1"
    ),
    "photos in folders, 3 clients": ("--data", "photos/"),
}  # fmt: skip
SETTINGS = {
    "digits, Dirichlet 0.1, 20 clients": digits("dirichlet", 20, "split.alpha=0.1"),
    "digits, Dirichlet 0.5, 20 clients": digits("dirichlet", 20, "split.alpha=0.5"),
    "digits, Dirichlet 5, 20 clients": digits("dirichlet", 20, "split.alpha=5"),
    "digits, shards, 20 clients": digits("shards", 20),
    "digits, iid, 20 clients": digits("iid", 20),
    "digits, Dirichlet 1, 60 small clients": digits("dirichlet", 60, "split.alpha=1"),
    "digits, Dirichlet 0.3, 4 large clients": digits("dirichlet", 4, "split.alpha=0.3"),
    "FEMNIST, 20 writers": ("--data", "femnist", "--split", "natural", "--clients", "20"),
    "MNIST sample, 3 classes each, 15 clients": (
        *MNIST, "--split", "classes", "--clients", "15", "--set", "split.k=3"
    ),
    "signals.npz, 4 machines": ("--data", "signals.npz"),
    "diabetes.csv, regression, 4 age groups": (
        *("--data", "diabetes.csv", "--task", "regression", "--model", "tabular"),
        *("--set", "data.client=age_group", "--set", "data.label=progression"),
        *("--set", "data.standardize=true", "--set", "method.lr=0.02"),
    ),
}  # fmt: skip


def idiolect(*words: str) -> Any:
    """What a command prints with --json."""
    command = [sys.executable, "-m", "idiolect", *words, "--json", "--checkpoint-every", "1000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)


def checked(setting: tuple[str, ...], place: Path) -> dict[str, Any]:
    shared = () if "--model" in setting else SHARED
    began = time.monotonic()
    advice = idiolect("advise", *setting, *shared, "--out", str(place / "advice"))
    seconds = time.monotonic() - began
    methods = [name for name in METHODS if name not in advice["left_out"]]
    words = ["compare", *methods, *setting, *shared, "--seeds", SEEDS, "--rounds", str(ROUNDS)]
    words += ["--eval-every", str(ROUNDS)]
    rate = next(word for word in (*setting, *shared) if word.startswith("method.lr="))
    words += ["--set", f"fedavg_ft.ft_lr={rate.partition('=')[2]}"]  # as `advise` does
    table = idiolect(*words, "--out", str(place / "full"))
    metric = table[0].get("metric", "accuracy")
    scores = {row["method"]: row["accuracy"] for row in table}
    best = (min if metric == "rmse" else max)(scores, key=lambda name: scores[name])
    apart = abs(scores[best] - scores[advice["method"]])
    gap = 100 * apart / (scores[best] if metric == "rmse" else 1)
    return {
        "choice": advice["method"],
        "cannot_be_told_apart": advice["cannot_be_told_apart"],
        "best": best,
        "gap": round(gap, 2),
        "within": gap <= WITHIN,
        "metric": metric,
        "test": {name: round(score, 4) for name, score in scores.items()},
        "validation": {r["method"]: round(r["accuracy"], 4) for r in advice["validation"]},
        "skew": round(advice["heterogeneity"]["skew"], 3),
        "seconds_of_advice": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=lambda text: Path(text).resolve())
    parser.add_argument("--design", action="store_true")
    asked = parser.parse_args()
    script = Path(__file__).resolve().parents[1] / "examples" / "own-data" / "make_data.py"
    about = {
        "commit": commit(),
        "machine": machine("cpu"),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "rounds": ROUNDS,
        "seeds": SEEDS,
    }
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # own data is named without a path
        subprocess.run([sys.executable, str(script)], check=True, stdout=subprocess.DEVNULL)
        for number, (name, setting) in enumerate((DESIGN if asked.design else SETTINGS).items()):
            found[name] = one = checked(setting, Path(folder) / str(number))
            print(
                f"{name}: chose {one['choice']}, best {one['best']}, gap {one['gap']}", flush=True
            )
            held = sum(one["within"] for one in found.values())
            if asked.out:
                so_far = {"within": f"{held} of {len(found)}", "settings": found}
                files.write_json(asked.out, about | so_far)
        os.chdir(asked.out.parent if asked.out else "/")  # the folder goes
    print(f"{held} of {len(found)} within {WITHIN} point")


if __name__ == "__main__":
    main()
