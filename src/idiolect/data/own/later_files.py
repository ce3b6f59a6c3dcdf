"""Files that come after a run, read as the run's own files were: the same columns, and words under
the numbers that they had in training."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from idiolect.core import rng
from idiolect.data.federation import Federation
from idiolect.data.own.own_files import OwnFiles, is_path, labels_of, own_files
from idiolect.data.splits.base import cut
from idiolect.errors import UserError

TEST_SHARE = 0.25  # of a newcomer's rows, where no column says which are for testing


def input_columns(federation: Federation) -> list[dict[str, Any]]:
    """Of a run on a table: the input columns in their order, and the words behind the codes of
    those that hold words or categories."""
    source = {k: v for k, v in (federation.info.get("source") or {}).items() if k != "where"}
    if not is_path(source.get("name")):
        return []
    read = own_files(source).read()
    words = {name: {"values": list(known)} for name, known in read.known.items()}
    return [{"name": name, **words.get(name, {})} for name in read.inputs]


@dataclass(frozen=True)
class LaterRows:
    """Samples of a file; `y` if it has labels, `part` if it says train or test."""

    x: np.ndarray
    y: np.ndarray | None = None
    part: np.ndarray | None = None

    def by_part(self, file: Path) -> dict[str, np.ndarray]:
        """x_train, y_train, x_test and y_test; a quarter of all rows is for testing if the file
        does not say which."""
        if self.y is None:
            raise UserError(f"{file} has no labels, which training needs")
        if self.part is not None:
            rows = {name: np.flatnonzero(self.part == name) for name in ("train", "test")}
        else:
            order = rng.keyed(0, "newcomer").permutation(len(self.x))
            rows = dict(zip(("train", "test"), cut(order, TEST_SHARE), strict=True))
        return {f"{v}_{p}": getattr(self, v)[np.sort(at)] for p, at in rows.items() for v in "xy"}


def read_later(federation: Federation, file: Path) -> LaterRows:
    """A table or a folder of images, like the one that the federation was made of."""
    source = {k: v for k, v in (federation.info.get("source") or {}).items() if k != "where"}
    if not is_path(source.get("name")):
        raise UserError(f"--data {file}: the run's data are no files of this kind; give .npz")
    first = own_files(source)
    before = first.read()
    read = later(first, federation, file).read(before)
    found, width = read.columns, federation.shape[0]
    if read.form.quantities(width) != before.form.quantities(width):
        raise UserError(f"{file} has words in a column where the run's data has numbers, or numbers"
                        " for words; bring it to the run's kinds")  # fmt: skip
    x, y = found["x"], found.get("y")
    if federation.x.is_floating_point() and x.dtype == np.int64:
        x = x.astype(np.float32)  # a column that happens to hold whole numbers only
    if y is not None:
        known = tuple(federation.info.get("class_names") or ())
        y = labels_of(y, federation.task, read.tokens, replace(first, name=str(file)), known)[0]
    return LaterRows(x, y, found.get("part"))


def later(first: OwnFiles, federation: Federation, file: Path) -> OwnFiles:
    """The settings of the run's files for another one, with the lengths and sizes they had."""
    shape = federation.shape
    how: dict[str, Any] = {"length": shape[0]} if federation.form.padded else {}
    if len(shape) == 3:
        how["size"] = shape[1:]
    return replace(first, name=str(file), **how)
