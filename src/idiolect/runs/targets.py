"""Files that commands are asked to write must not take the place of runs, data or other models."""

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from idiolect.errors import UserError
from idiolect.runs import run_files, seal
from idiolect.runs.config import digest
from idiolect.runs.directory import FILES, PARTS

BESIDES = (seal.FILE, ".lock", "log", "flower", "exports", "earlier-*")  # what a run may have too
MODEL_FILES = (
    "model.safetensors", "adapters.safetensors", "model.onnx", "card.json", "README.md"
)  # fmt: skip


def outside_runs(target: Path) -> None:
    """Refuse a file in the folder of a run."""
    if (run := _run_around(target)) is not None:
        raise UserError(f"{target} is in the folder of a run ({run.name}); choose another --out")


def no_part_of_a_run(target: Path) -> None:
    """Refuse what a run wrote itself; a report may lie beside it."""
    run = _run_around(target)
    if run is None:
        return
    first = target.resolve().relative_to(run).parts[0]
    if any(fnmatch(first, own) for own in (*FILES, *PARTS, *BESIDES)):
        raise UserError(f"{target} is part of a run ({run.name}); choose another file to write")


def no_data(target: Path, read: Path, of_the_run: str) -> None:
    """Refuse a file that is read, or lies in a folder that is, and the file a run was trained on,
    as its settings name it."""
    whole, data = target.resolve(), read.resolve()
    inside = data.is_dir() and data in whole.parents
    if inside or _is_same(whole, data) or _is_same(whole, Path(of_the_run)):
        raise UserError(f"{target} is data that is read; choose another --out")


def _is_same(one: Path, other: Path) -> bool:
    """Links have many names for one file."""
    return one.exists() and other.exists() and one.samefile(other)


def no_other_model(place: Path, config: dict[str, Any], number: int, client: str) -> None:
    """Refuse a folder with files that a model's would replace, unless they are of the same client
    and run: `number` tells a client from a newcomer that was given its name."""
    there = [name for name in MODEL_FILES if (place / name).exists()]
    if not there:
        return
    try:
        card = run_files.read_json(place / "card.json")
        of = card["run"], card["client"]["id"], card["client"]["name"]
        same = of == (digest(config), number, client)
    except (UserError, KeyError, TypeError):
        same = False
    if not same:
        raise UserError(
            f"{place / there[0]} is there and not of this run and client; choose another folder "
            "with --out"
        )


def _run_around(target: Path) -> Path | None:
    others = [name for name in FILES if name != "config.yaml"]  # settings alone are no run
    for folder in target.resolve().parents:
        if (folder / "config.yaml").is_file() and any((folder / name).exists() for name in others):
            return folder
    return None
