"""split.json: how many training samples of every class each client of a simulated run holds."""

import json
from pathlib import Path
from typing import Any

import torch

from idiolect.core import files
from idiolect.errors import UserError
from idiolect.runs import run_files

FILE = "split.json"
MOST_CELLS = 400_000  # clients × classes; the counts of a larger federation are not kept


def write(out: Path, sim: Any) -> None:
    """Once, when a run begins. Sites of a real federation keep their data and its classes."""
    federation = getattr(sim, "federation", None)
    if federation is None or not federation.task.has_classes:
        return
    clients, classes = federation.n_clients, federation.classes
    about: dict[str, Any] = {"clients": clients, "classes": classes, "counts": None}
    if clients * classes <= MOST_CELLS:
        about["counts"] = [
            torch.bincount(federation.y[rows], minlength=classes).tolist()
            for rows in federation.train
        ]
        about["class_names"] = [str(name) for name in federation.info.get("class_names", ())]
    files.write_text(out / FILE, json.dumps(about, separators=(",", ":")) + "\n")


def read(out: Path) -> dict[str, Any] | None:
    """What `write` wrote; None for a run that has no such file."""
    path = out / FILE
    about = run_files.read_json(path)
    if not about:
        return None
    run_files.checked(about, {"clients": run_files.COUNT, "classes": run_files.COUNT}, path)
    counts = about.get("counts")
    if counts is not None and not _is_table(counts, about["clients"], about["classes"]):
        raise UserError(f"{path} is damaged: counts must have a row per client, a count per class")
    if not isinstance(about.get("class_names", []), list):
        raise UserError(f"{path} is damaged: class_names must be a list")
    return about


def _is_table(counts: Any, clients: int, classes: int) -> bool:
    if not isinstance(counts, list) or len(counts) != clients or clients * classes > MOST_CELLS:
        return False
    rows = [row for row in counts if isinstance(row, list) and len(row) == classes]
    return len(rows) == clients and all(run_files.is_count(n) for row in rows for n in row)
