"""One server and three sites on this machine, as separate processes, with TLS and node keys.

The data are handwritten digits (8x8), split unevenly. Every site has a data file, a state folder
and a key, and sees nothing of the others. It runs FedAS, then PLGA with the same clients still
running, and shows the table.

    pip install 'idiolect[deploy]'
    python examples/three-sites/three_sites.py [--rounds 5] [--folder three-sites]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np

from idiolect import data as federation
from idiolect.deploy.processes import free_port

SITES = 3
IDIOLECT = [sys.executable, "-m", "idiolect"]
METHODS = {
    "fedas": ["--set", "method.lr=0.1", "--set", "method.align_lr=0.1"],
    # A round of an asynchronous method lasts as long as its window; late work is used later.
    "plga": ["--window", "15", "--set", "method.lr=0.2", "--set", "method.batch_size=16"],
}


def write_data(folder: Path) -> None:
    """One data file per site. A real site has its data already, as a file or a Python function."""
    split = {"name": "dirichlet", "clients": SITES, "alpha": 0.3}
    digits = federation.build({"name": "digits"}, split, seed=0)
    for site in range(SITES):
        arrays = {}
        for part in ("train", "test"):
            rows = getattr(digits, part)[site]
            arrays[f"x_{part}"] = digits.inputs(rows).numpy()
            arrays[f"y_{part}"] = digits.y[rows].numpy()
        place = folder / f"site{site}"
        place.mkdir(parents=True, exist_ok=True)
        np.savez(place / "data.npz", **arrays)
        held = np.unique(arrays["y_train"])
        print(f"site {site}: {len(arrays['y_train'])} samples of digits {held.tolist()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("three-sites"))
    given = parser.parse_args()
    folder, keys, port = given.folder, given.folder / "keys", free_port()
    write_data(folder)
    subprocess.run([*IDIOLECT, "keys", str(keys), "--clients", str(SITES)], check=True)
    sites = []
    try:
        for site in range(SITES):
            place = folder / f"site{site}"
            command = [
                *(*IDIOLECT, "client", "--server", f"127.0.0.1:{port}", "--id", str(site)),
                *("--data", str(place / "data.npz"), "--classes", "10"),
                *("--state", str(place / "state"), "--name", f"site-{site}"),
                *("--ca", str(keys / "ca.pem"), "--key", str(keys / "clients" / f"client_{site}")),
            ]
            with (place / "client.log").open("w") as log:
                sites.append(subprocess.Popen(command, stderr=log))
        for method, more in METHODS.items():
            print(f"\n{method}", flush=True)
            command = [
                *(*IDIOLECT, "server", method, "--clients", str(SITES)),
                *("--rounds", str(given.rounds), "--out", str(folder / "runs" / method)),
                *("--keys", str(keys), "--port", str(port), *more),
            ]
            if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
                return 1
    finally:
        for process in sites:
            process.terminate()
        for process in sites:
            process.wait()
    return subprocess.run(
        [*IDIOLECT, "report", str(folder / "runs"), "--format", "terminal"]
    ).returncode


if __name__ == "__main__":
    raise SystemExit(main())
