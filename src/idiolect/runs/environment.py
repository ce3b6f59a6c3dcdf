"""env.json: what computed a run, so that its numbers can be traced."""

import hashlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from idiolect.data.federation import PARTS
from idiolect.engine.ranks import Ranks
from idiolect.errors import UserError
from idiolect.runs import revision as revisions
from idiolect.runs.run_files import read_json

MOST_THREADS = 1024
PACKAGES = ("idiolect", "torch", "numpy", "pyarrow", "safetensors", "scikit-learn")


def describe(config: Mapping[str, Any], sim: Any = None) -> dict[str, Any]:
    """Versions, machine, commit, command line, revision of the method, and fingerprints of the
    files a run starts from."""
    device = str(getattr(sim, "device", config["device"]))
    about = {"revision": revisions.of(config), "inputs": fingerprints(config, sim)}
    return machine(device) | about


def machine(device: str) -> dict[str, Any]:
    """What the numbers of this process come from."""
    import torch

    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    return {
        "command": " ".join(sys.argv),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "device": device,
        "device_name": torch.cuda.get_device_name(0) if on_gpu else _processor(),
        "threads": torch.get_num_threads(),
        "ranks": Ranks.current().world,
        "commit": commit(),
    }


def same_threads(out: Path) -> None:
    """Sums depend on how many threads share them: a resumed run uses as many as it began with."""
    import torch

    threads = read_json(out / "env.json").get("threads")
    if isinstance(threads, int) and 0 < threads <= MOST_THREADS:
        torch.set_num_threads(threads)


def fingerprints(config: Mapping[str, Any], sim: Any = None) -> dict[str, str]:
    """SHA-256 of the clients' data and of the files named in the config; resume must meet the same
    ones."""
    federation = getattr(sim, "federation", None)  # the sites of a real federation keep theirs
    found = {} if federation is None else {"data": _data_digest(federation)}
    for name in ("init", "schedule"):
        if config[name] is not None:
            path, digest = Path(config[name]), hashlib.sha256()
            files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
            for file in files:
                digest.update(file.name.encode() + file.read_bytes())
            found[name] = digest.hexdigest()
    return found


def check_inputs(out: Path, config: Mapping[str, Any], sim: Any = None) -> None:
    """Refuse to go on with other data or files than the run in `out` began with; without `sim`, of
    the files alone."""
    began = read_json(out / "env.json").get("inputs", {})
    if not isinstance(began, dict):
        raise UserError(f"{out / 'env.json'} is damaged: inputs must hold keys and values")
    for name, digest in fingerprints(config, sim).items():
        if began.get(name, digest) != digest:
            what = config["data"]["name"] if name == "data" else config[name]
            raise UserError(
                f"{name}: {what} changed since the run started ({out}); put it back, or choose "
                "another --out"
            )


_digests: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # the runs of a comparison share data


def _data_digest(federation: Any) -> str:
    """SHA-256 of all samples, and of who holds which."""
    if federation not in _digests:
        digest = hashlib.sha256(
            repr((federation.classes, federation.mean, federation.std)).encode()
        )
        rows = (one for part in PARTS for one in getattr(federation, part))
        for tensor in (federation.x, federation.y, *rows):
            digest.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
            digest.update(tensor.contiguous().numpy().data)
        _digests[federation] = digest.hexdigest()
    return _digests[federation]


def commit() -> str | None:
    """IDIOLECT_COMMIT, else the git commit of this package's source or of the current directory."""
    if told := os.environ.get("IDIOLECT_COMMIT"):
        return told
    for place in (Path(__file__).parent, Path.cwd()):
        # A package inside an environment would find the repository around the environment.
        if "site-packages" not in place.parts and (found := revision(place)):
            return found
    return None


def revision(place: Path) -> str | None:
    """Git commit of the checkout that holds `place`; `+` when files were changed since."""
    head = _git(place, "rev-parse", "HEAD")
    if not head or _names_programs(place):
        return head or None
    changed = _git(place, "status", "--porcelain", "-uno", "--ignore-submodules=all")
    return head + ("+" if changed else "")


def _names_programs(place: Path) -> bool:
    """Whether a checkout has programs of its own that `git status` would run: the folder a command
    is called in may come from anyone."""
    words = ("--includes", "--get-regexp", r"^(core\.fsmonitor|filter\.)")
    return any(_git(place, "config", scope, *words) for scope in ("--local", "--worktree"))


def _git(place: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(place), "-c", "core.hooksPath=/dev/null", *arguments],
            capture_output=True,
            text=True,
            timeout=5,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    # The platform module knows the family at best; Linux tells the model.
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
