"""Reads a client's data from a file, a folder or a function, and builds the client with it."""

import hashlib
import importlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from idiolect.core import own_code, own_metric
from idiolect.core.form import PLAIN, Form
from idiolect.core.task import LearningTask
from idiolect.data import Federation
from idiolect.data.arrays import read_npy, read_npz
from idiolect.deploy.client import Client
from idiolect.errors import UserError, did_you_mean

Classes = int | list[str] | None  # how many, or their names in order

ARRAYS = ("x_train", "y_train", "x_val", "y_val", "x_test", "y_test")


def open_client(settings: dict[str, Any]) -> Client:
    """A client from plain settings, which reach its process as JSON."""
    classes, codes = read_classes(settings.get("classes")), read_codes(settings.get("codes"))
    data = load_data(settings["data"], classes, settings["client"], meaning(settings, codes))
    if metric := settings.get("metric"):
        if own_code.is_own(metric):
            own_metric.admit(metric, [metric])
        data = data.judged_by(metric)
    if data.task.name == "next-token" and not codes:
        codes = (data.classes,)  # inputs are of the same tokens as targets
    return Client(
        settings["client"],
        data,
        Path(settings["state"]),
        name=settings.get("name") or "",
        labels=labels_digest(classes),
        codes=codes,
        model=settings.get("model"),
        method=settings.get("method"),
        loss=settings.get("loss"),
        augment=settings.get("augment"),
        device=settings.get("device") or "cpu",
    )


@dataclass(frozen=True)
class Meaning:
    """What the arrays of a site mean: the options `--task`, `--codes` and `--padded`."""

    task: str | None = None  # not given: classification, or what a Federation says
    form: Form = PLAIN

    def of(self, made: Federation, where: str) -> Federation:
        """A Federation that a function returned, with what the options say of it."""
        if self.task not in (None, made.task.name):
            raise UserError(
                f"--data {where} returned a Federation of {made.task.name}; leave out --task "
                f"{self.task}"
            )
        if self.form == PLAIN:
            return made
        codes, padded = self.form.codes or made.form.codes, self.form.padded or made.form.padded
        return replace(made, form=replace(made.form, codes=codes, padded=padded))


def meaning(settings: Mapping[str, Any], codes: tuple[int, ...]) -> Meaning:
    task = settings.get("task")
    LearningTask(task or "classification")
    return Meaning(task, Form(codes, bool(settings.get("padded"))))


def read_codes(text: str | None) -> tuple[int, ...]:
    """`57`, or a number for each column: `3,0,0`."""
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise UserError(f"--codes {text} must be a number, or one for each column: 3,0,0")
    return tuple(map(int, parts))


def read_classes(text: str | None) -> Classes:
    """`10`, or the names of the federation's classes: `cat,dog`, or a file with a name per line."""
    if text is None:
        return None
    if text.isdigit():
        return int(text)
    path = Path(text).expanduser()
    parts = path.read_text(encoding="utf-8").splitlines() if path.is_file() else text.split(",")
    names = [part.strip() for part in parts if part.strip()]
    if len(set(names)) != len(names) or not names:
        raise UserError(f"--classes {text} must be a number or different names")
    return names


def labels_digest(classes: Classes) -> str:
    """A digest of the list of names: clients that number classes differently must not mix."""
    if not isinstance(classes, list):
        return ""
    return hashlib.sha256("\n".join(classes).encode()).hexdigest()[:16]


def load_data(
    where: str, classes: Classes, client: int = 0, means: Meaning | None = None
) -> Federation:
    """One client's data from an .npz file, a folder of .npy files, `file.py:function` or
    `module:function`.

    The arrays are x_train, y_train, x_test, y_test and, if there is a validation part, x_val and
    y_val. Labels are numbers, or names from the list `classes`. A function returns the arrays as a
    dict, or a Federation of one client; it may take `client`.
    """
    path, means = Path(where).expanduser(), means or Meaning()
    if path.exists():
        return _one_client(_read(path), classes, where, means)
    if ":" not in where:
        raise UserError(
            f"--data {where} is no file or folder; give an .npz file, a folder of .npy files, "
            "file.py:function or module:function"
        )
    made = _call(where, client)
    if isinstance(made, Federation):
        if made.n_clients != 1:
            raise UserError(f"--data {where} returned {made.n_clients} clients; return one")
        return means.of(made, where)
    if not isinstance(made, dict):
        raise UserError(f"--data {where} returned {type(made).__name__}; return a dict of arrays")
    return _one_client(made, classes, where, means)


def _read(path: Path) -> dict[str, Any]:
    if path.is_dir():
        files = {name: path / f"{name}.npy" for name in ARRAYS}
        return {name: read_npy(file) for name, file in files.items() if file.exists()}
    if path.suffix == ".npy":
        raise UserError(f"{path} holds one array; save x_train, y_train, … with np.savez")
    return read_npz(path, ARRAYS)


def _one_client(arrays: dict[str, Any], classes: Classes, where: str, means: Meaning) -> Federation:
    if isinstance(classes, list):
        arrays = {n: _as_numbers(a, classes) if n[0] == "y" else a for n, a in arrays.items()}
        classes = len(classes)
    try:
        task = means.task or "classification"
        return Federation.from_arrays([arrays], classes=classes, task=task, form=means.form)
    except UserError as error:
        raise UserError(f"--data {where}: {error}") from None


def _as_numbers(labels: Any, names: list[str]) -> Any:
    """Class names as their positions in the list; numbers stay as they are."""
    labels = np.asarray(labels)
    if labels.dtype.kind not in "US":
        return labels
    place = {name: i for i, name in enumerate(names)}
    known, inverse = np.unique(labels.astype(str), return_inverse=True)
    for name in known:
        if name not in place:
            raise did_you_mean(name, names, "class in the data")
    return np.array([place[name] for name in known], dtype=np.int64)[inverse]


def _function(where: str) -> Any:
    module, _, function = where.rpartition(":")
    if module.endswith(".py"):
        return own_code.load_function(where, "data", [where])  # the site's own command line says so
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UserError(f"cannot import --data {where}: {error}") from None


def _call(where: str, client: int) -> Any:
    make = _function(where)
    try:
        wants = "client" in inspect.signature(make).parameters
        return make(client=client) if wants else make()
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"--data {where} failed: {reason[:300]}") from error
