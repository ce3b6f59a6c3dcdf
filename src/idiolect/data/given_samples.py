"""Samples that came after a run, in the form of its federation: to predict, or for a newcomer."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect.data.arrays import read_npz
from idiolect.data.client_arrays import PARTS, check_keys, pair
from idiolect.data.federation import Federation
from idiolect.data.own.columns import codes, step_codes
from idiolect.data.own.later_files import read_later
from idiolect.data.own.own_files import TABLES, is_path
from idiolect.errors import UserError

NUMBER = re.compile(r"-?[0-9]+")
ARRAYS = tuple(f"{v}_{part}" for part in PARTS for v in "xy")


def to_predict(federation: Federation, file: Path) -> tuple[Federation, bool]:
    """The samples `x` of an .npz file (`x_test` if it has no `x`), or those of files like the run's
    own, normalised as the federation's, and whether it has their labels too (`y`, `y_test`)."""
    if npz := _is_npz(file):
        found = read_npz(file, ("x", "y", "x_test", "y_test"))
    else:
        later = read_later(federation, file)
        found = {"x": later.x} if later.y is None else {"x": later.x, "y": later.y}
    end = "" if "x" in found else "_test"
    if f"x{end}" not in found:
        raise UserError(f"{file} has no array x; save it with np.savez(file, x=…)")
    labelled = f"y{end}" in found
    nothing = federation.y.new_zeros(len(found[f"x{end}"]), *federation.y.shape[1:])
    with _told(file, 0, end):
        if labelled and npz:  # those of a table have the run's numbers by now
            found[f"y{end}"] = _coded(federation, found[f"y{end}"], f"y{end}")
        given = {"x_test": found[f"x{end}"], "y_test": found.get(f"y{end}", nothing)}
        x, y = pair(0, "test", given, federation.task)
        _check_form(federation, x, f"x{end}")
        _check_targets(federation, y, f"y{end}")
        rows = torch.arange(len(x))
        made = replace(
            federation, x=x, y=y, train=(rows,), val=(), test=(rows,), names=(), unseen=()
        )
    return made, labelled


def with_newcomer(federation: Federation, file: Path, name: str) -> Federation:
    """The federation and one client more, who never takes part: the last one. Its .npz file has
    x_train, y_train, x_test and y_test, and x_val and y_val if there is a validation part; or it is
    like the run's own files."""
    if name in federation.names:
        raise UserError(f"client '{name}' took part in the run; give --client another name")
    number, npz = federation.n_clients, _is_npz(file)
    arrays = read_npz(file, ARRAYS) if npz else read_later(federation, file).by_part(file)
    with _told(file, number):
        check_keys(number, arrays)
        for key in arrays.keys() & {f"y_{part}" for part in PARTS} if npz else ():
            arrays[key] = _coded(federation, arrays[key], key)
        parts = {part: pair(number, part, arrays, federation.task) for part in PARTS}
        for part, (x, y) in parts.items():
            if len(x):
                _check_form(federation, x, f"x_{part}")
                _check_targets(federation, y, f"y_{part}")
        return _joined(federation, parts, name)


def _joined(
    federation: Federation, parts: Mapping[str, tuple[Tensor, Tensor]], name: str
) -> Federation:
    xs, ys, rows = [federation.x], [federation.y], {}
    start = len(federation.x)
    for part, (x, y) in parts.items():
        rows[part] = torch.arange(start, start + len(x))
        if len(x):
            xs.append(x)
            ys.append(y)
        start += len(x)
    changes: dict[str, Any] = {part: (*getattr(federation, part), rows[part]) for part in PARTS}
    return replace(
        federation,
        x=torch.cat(xs),
        y=torch.cat(ys),
        names=(*federation.names, name),
        unseen=(*federation.unseen, federation.n_clients),
        **changes,
    )


def _coded(federation: Federation, labels: np.ndarray, what: str) -> np.ndarray:
    """Labels as the run numbers them: words by the names of its classes, and so whole numbers where
    the user's own files had numbers for names."""
    known = tuple(map(str, federation.info.get("class_names") or ()))
    task, kind = federation.task, labels.dtype.kind
    if not known or not (task.has_classes or task.per_step):
        return labels
    source = federation.info.get("source") or {}
    numbered = is_path(source.get("name")) and all(NUMBER.fullmatch(name) for name in known)
    if kind in "US" or (kind in "iu" and numbered and task.has_classes):
        return (codes if task.has_classes else step_codes)(labels, what, known)[0]
    return labels


def _check_form(federation: Federation, x: Tensor, what: str) -> None:
    theirs = federation.x
    if x.shape[1:] != theirs.shape[1:] or x.dtype != theirs.dtype:
        raise UserError(
            f"{what} holds {x.dtype} samples of shape {list(x.shape[1:])}, the run's are "
            f"{theirs.dtype} of {list(theirs.shape[1:])}; bring them to that form"
        )
    if len(x) == 0:
        raise UserError(f"{what} has no samples")


def _check_targets(federation: Federation, y: Tensor, what: str) -> None:
    wanted = list(federation.y.shape[1:])
    if list(y.shape[1:]) != wanted:
        got = list(y.shape[1:])
        raise UserError(f"{what} holds targets of shape {got}, the run's are of {wanted}")


def _is_npz(file: Path) -> bool:
    if not file.exists():
        raise UserError(f"--data {file} is no file; give an .npz file, or one like the run's")
    return file.suffix.lower() not in TABLES and file.is_file()


@contextmanager
def _told(file: Path, client: int, end: str = "_test") -> Iterator[None]:
    """Errors about arrays name their file, and arrays as the file does, x and y with `end`; which
    client it is needs no saying."""
    try:
        yield
    except UserError as error:
        said = str(error).removeprefix(f"client {client}: ")
        said = re.sub(r"\b([xy])_test\b", rf"\1{end}", said)
        raise UserError(f"{file}: {said}") from None
