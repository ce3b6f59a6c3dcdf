"""A recipe small enough for tests: digits, two methods, two splits."""

import json
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from idiolect.papers.recipe import Recipe, read_file

TINY: dict[str, Any] = {
    "name": "tiny",
    "paper": "fedas",
    "kind": "table",
    "title": "Table 0: digits",
    "seeds": [0, 1],
    "base": {
        "data": "digits",
        "split": {"name": "dirichlet", "clients": 4, "alpha": 0.5},
        "model": "linear",
        "rounds": 3,
        "method": {"lr": 0.05, "epochs": 1, "mu": 0.1},
    },
    "columns": [
        {"id": "skewed", "label": "α=0.5", "set": {"split.alpha": 0.5}},
        {"id": "even", "set": {"split": {"alpha": 50}}},
    ],
    "rows": [
        {"id": "fedavg", "label": "FedAvg", "method": "fedavg"},
        {"id": "local", "method": "local", "set": {"method.lr": 0.01}},
        {"id": "prox", "method": "fedprox", "extra": True, "columns": ["even"]},
    ],
    "paper_values": {"fedavg": {"skewed": 80, "even": [90, 1.5]}},
    "claims": [
        {"id": "best", "says": "FedAvg is best", "kind": "best", "row": "fedavg"},
        {"id": "near", "says": "as printed", "kind": "near", "row": "fedavg", "within": 50},
    ],
    "quick": {"rounds": 1, "columns": ["even"], "set": {"data.sample": [400, 0]}},
    "notes": ["A note."],
}


def written(folder: Path = Path(), **changes: Any) -> Path:
    """The file of the tiny recipe, with changes."""
    content = deepcopy(TINY) | changes
    file = folder / f"{content['name']}.yaml"
    plain = json.loads(json.dumps(content))  # nothing is there twice: aliases are not read
    file.write_text(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
    return file


def tiny(folder: Path = Path(), **changes: Any) -> Recipe:
    return read_file(written(folder, **changes))


def start(*words: object) -> "subprocess.Popen[str]":
    """`idiolect recipe …` as a process of its own."""
    program = [sys.executable, "-m", "idiolect", "recipe", *map(str, words)]
    return subprocess.Popen(program, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def numbers(name: str = "tiny", root: str = "results") -> dict[str, float]:
    """What was recorded, by digest of the settings."""
    lines = (Path(root) / name / "runs.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return {
        f"{r['config']['method']['name']} {r['config']['split']['alpha']} {r['config']['seed']}": (
            r["numbers"]["protocol"]
        )
        for r in records
    }
