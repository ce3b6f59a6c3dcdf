"""Other libraries' own code, run as they are on our data, each in a process of its own.

Nothing of them is in this repository: the user names a checkout, `child.py` runs its main program
there; `blazefl_program.py` for BlazeFL, a library without one. PFLlib and the FedAS authors'
program (built on it) read one compressed file per client; pfl-research reads all images and deals
them to its users itself, in equal parts as we do, by its own seed; FL-bench reads all samples and
how they are dealt; BlazeFL gets a file per client.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from idiolect.bench.job import Job, Row
from idiolect.data import Federation
from idiolect.errors import UserError, did_you_mean
from idiolect.runs.environment import revision

CHILD = Path(__file__).with_name("child.py")


@dataclass(frozen=True)
class Peer:
    """How a library's main program is started. Paths are below its checkout."""

    program: str  # or, where `ours` is run, a file that a checkout has
    search: tuple[str, ...]  # where its imports are found
    watch: str  # the function of child.py that times its rounds
    spare: tuple[str, ...]  # modules it imports but does not need here
    arguments: Callable[[Job, str, str, int, Path, Path], list[str]]  # also writes the data
    ours: Path | None = None  # the program, where a peer is a library without one


def parse(given: Sequence[str]) -> dict[str, Path]:
    """`["pfllib=/path"]` as a dict."""
    found = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not path:
            raise UserError(f"--peer takes NAME=PATH, for example pfllib=../PFLlib, not '{text}'")
        if name not in PEERS:
            raise did_you_mean(name, PEERS, "peer")
        found[name] = Path(path).expanduser().resolve()
    return found


def check(name: str, path: Path) -> None:
    """Is it the peer's checkout?"""
    program = PEERS[name].program
    if not (path / program).is_file():
        raise UserError(f"peer {name}: there is no {program} in {path}; give its checkout")


def run(
    job: Job, whose: tuple[str, str], path: Path, device: str, rounds: int, scratch: Path
) -> Row:
    """Seconds a round of a peer's code for this job: a first round, then `rounds`."""
    name, algorithm = whose
    peer = PEERS[name]
    place = scratch / f"{id(job.federation):x}" / peer.watch
    place.mkdir(parents=True, exist_ok=True)
    spec = {
        "program": str(peer.ours or path / peer.program),
        "arguments": peer.arguments(job, algorithm, device, rounds, path, place.parent),
        "search": [str(path / part) for part in peer.search],
        "watch": peer.watch,
        "spare": peer.spare,
        "rounds": rounds,
        "threads": torch.get_num_threads(),
    }
    (place / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
    result = place / "result.json"
    result.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-P", str(CHILD), "spec.json", result.name],
        cwd=place,
        env={**os.environ, "PFL_PYTORCH_DEVICE": device},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    if not result.exists():
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")
        raise UserError(f"peer {name} {algorithm} failed ({done.returncode}): {last.strip()[:300]}")
    about = {"peer": name, "algorithm": algorithm, "version": _version(path)}
    return about | json.loads(result.read_text(encoding="utf-8"))


def _version(path: Path) -> str | None:
    """Its commit; a copy without history inside another repository has none."""
    return revision(path) if (path / ".git").exists() else None


# --- PFLlib, and the FedAS authors' program ---


def _pfllib(model: str) -> Callable[[Job, str, str, int, Path, Path], list[str]]:
    """The arguments of its main program; `model` is its name for the CNN of `fedas_cnn`."""

    def arguments(
        job: Job, algorithm: str, device: str, rounds: int, path: Path, place: Path
    ) -> list[str]:
        assert job.model == "fedas_cnn"
        fed = job.federation
        dataset = "Cifar10" if fed.shape == (3, 32, 32) else "MNIST"  # decides its CNN's size
        folder = place / "dataset" / dataset
        if not folder.exists():
            _write_clients(fed, folder)
        settings = {
            "dataset": dataset,
            "num_classes": fed.classes,
            "num_clients": fed.n_clients,
            "model": model,
            "algorithm": algorithm,
            "batch_size": job.method["batch_size"],
            "local_learning_rate": job.method["lr"],
            "local_epochs": job.method.get("epochs", 1),
            "global_rounds": rounds + 2,
            "device": device,
        }
        return [text for k, v in settings.items() for text in (f"--{k}", str(v))]

    return arguments


def _write_clients(federation: Federation, folder: Path) -> None:
    """train/I.npz and test/I.npz: a dict with x and y, as an object array, compressed."""
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        for i, rows in enumerate(getattr(federation, part)):
            data = {"x": federation.inputs(rows).numpy(), "y": federation.y[rows].numpy()}
            np.savez_compressed(folder / part / f"{i}.npz", data=np.array(data, dtype=object))


# --- pfl-research ---


def _pfl(job: Job, algorithm: str, device: str, rounds: int, path: Path, place: Path) -> list[str]:
    """Its own published configuration, with the data and the number of rounds given."""
    fed = job.federation
    for part in ("train", "test"):
        _write_images(fed, part, place / f"cifar10_{part}.p")
    cohort = round(job.options["participation"] * fed.n_clients)
    config = path / "benchmarks/image_classification/configs/baseline.yaml"
    settings = {
        "args_config": config,
        "data_path": place,
        "mean_datapoints_per_user": int(fed.sizes("train")[0]),
        "cohort_size": cohort,
        "central_num_iterations": rounds + 1,
    }
    return [text for k, v in settings.items() for text in (f"--{k}", str(v))]


def _write_images(federation: Federation, part: str, file: Path) -> None:
    """Images, channels last, and labels of all users, as the pair of arrays it unpickles."""
    rows = torch.cat(getattr(federation, part))
    pair = np.empty(2, dtype=object)
    pair[0] = federation.x[rows].permute(0, 2, 3, 1).contiguous().numpy()
    pair[1] = federation.y[rows].numpy()[:, None]
    pair.dump(file)


# --- FL-bench ---


def _flbench(
    job: Job, algorithm: str, device: str, rounds: int, path: Path, place: Path
) -> list[str]:
    """Its settings are its defaults, apart from these; its CNN for CIFAR-10 is `fedas_cnn`."""
    fed = job.federation
    assert job.model == "fedas_cnn" and fed.shape == (3, 32, 32) and fed.classes == 10
    folder = place / "data/cifar10"
    if not folder.exists():
        _write_arrays(fed, folder)
    settings = {
        "method": algorithm.lower(),
        "dataset.name": "cifar10",
        "model.name": "avgcnn",
        "optimizer.lr": job.method["lr"],
        "common.join_ratio": 1.0,
        "common.global_epoch": rounds + 2,
        "common.local_epoch": job.method.get("epochs", 1),
        "common.batch_size": job.method["batch_size"],
        "common.use_cuda": "true" if device == "cuda" else "false",
    }
    return [f"{k}={v}" for k, v in settings.items()]


def _write_arrays(federation: Federation, folder: Path) -> None:
    """All samples, and whose they are."""
    folder.mkdir(parents=True)
    clients = list(range(federation.n_clients))
    every_row = torch.arange(len(federation.y))
    np.save(folder / "data.npy", federation.inputs(every_row).numpy())
    np.save(folder / "targets.npy", federation.y.numpy())
    dealt = {
        "separation": {"train": clients, "val": clients, "test": clients, "total": len(clients)},
        "data_indices": [
            {"train": train.tolist(), "val": [], "test": test.tolist()}
            for train, test in zip(federation.train, federation.test, strict=True)
        ],
    }
    (folder / "partition.pkl").write_text(json.dumps(dealt), encoding="utf-8")
    (folder / "args.json").write_text(json.dumps({"split": "sample"}), encoding="utf-8")


# --- BlazeFL ---


def _blazefl(
    job: Job, algorithm: str, device: str, rounds: int, path: Path, place: Path
) -> list[str]:
    """Clients in ten worker processes, its default, or as many as there are cores; or in one."""
    fed = job.federation
    assert job.model == "fedas_cnn"
    folder = place / "blazefl/samples"
    if not folder.exists():
        _write_parts(fed, folder)
    channels, height, width = fed.shape
    settings = {
        "device": device,
        "rounds": rounds + 2,
        "clients": fed.n_clients,
        "batch_size": job.method["batch_size"],
        "lr": job.method["lr"],
        "epochs": job.method.get("epochs", 1),
        "processes": 0 if algorithm.endswith("serial") else min(10, os.cpu_count() or 1),
        "channels": channels,
        "flat": 64 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2),
        "classes": fed.classes,
    }
    return [json.dumps(settings)]


def _write_parts(federation: Federation, folder: Path) -> None:
    """train/I.npz, test/I.npz and test/all.npz: arrays x and y."""
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        dealt = getattr(federation, part)
        for name, rows in [("all", torch.cat(dealt))] * (part == "test") + list(enumerate(dealt)):
            x, y = federation.inputs(rows).numpy(), federation.y[rows].numpy()
            np.savez(folder / part / f"{name}.npz", x=x, y=y)


PEERS = {
    "pfllib": Peer(
        "system/main.py",
        ("system",),
        "pfllib",
        ("torchvision", "calmsize", "h5py", "cvxpy", "ujson", "matplotlib"),
        _pfllib("CNN"),
    ),
    "fedas": Peer(
        "system/main.py",
        ("system",),
        "pfllib",
        ("torchvision", "torchviz", "opacus", "calmsize", "h5py", "ujson", "matplotlib"),
        _pfllib("cnn"),
    ),
    "pfl": Peer(
        "benchmarks/image_classification/pytorch/train.py",
        ("benchmarks", "."),
        "pfl",
        ("multiprocess", "dp_accounting", "prv_accountant"),
        _pfl,
    ),
    "flbench": Peer(
        "main.py", (".",), "flbench", ("torchvision", "pynvml", "ray", "pandas"), _flbench
    ),
    "blazefl": Peer(
        "src/blazefl/contrib/fedavg.py",
        ("src",),
        "blazefl",
        (),
        _blazefl,
        ours=Path(__file__).with_name("blazefl_program.py"),
    ),
}
