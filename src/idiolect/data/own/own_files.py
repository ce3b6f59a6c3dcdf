"""Files and folders of the user's own as a pool: a table, images in folders, or arrays."""

import os
import re
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from idiolect.core.fields import Checked, hyper, make, plain
from idiolect.core.form import Form
from idiolect.core.own_code import is_own, whole
from idiolect.core.task import LearningTask
from idiolect.data.cache import Columns
from idiolect.data.own.columns import Read, codes, names_of, step_codes, targets
from idiolect.data.own.source import OwnSource
from idiolect.data.pool import TEST, TRAIN, Pool
from idiolect.errors import UserError

TABLES = (".csv", ".tsv", ".parquet")
SUFFIXES = (*TABLES, ".npz")


@dataclass(frozen=True)
class OwnFiles(Checked, OwnSource):
    """Your own files. `name` is the path; the other fields are the options of `data:`."""

    name: str = hyper("", "a .csv, .tsv, .parquet or .npz file, or a folder of images or parquet")
    client: str | None = hyper(None, "column of the client's name; not set: 'client' if there")
    label: tuple[str, ...] | str | None = hyper(
        None, "column of the label, several for some tasks; not set: label, y, target or class"
    )
    input: tuple[str, ...] | str | None = hyper(None, "columns of the input; not set: all others")
    part: str | None = hyper(None, "column that says train or test; not set: 'part' if there")
    categories: tuple[str, ...] | str | None = hyper(
        None, "input columns of numbers that are categories; words always are"
    )
    tokens: Literal["chars", "words"] | None = hyper(
        None, "input columns of words become sequences of characters or of words"
    )
    vocabulary: int = hyper(10_000, "tokens that are kept, the most frequent", min=1)
    length: int | None = hyper(
        None, "length of sequences: longer are cut, shorter filled up; not set: the longest", min=1
    )
    form: Literal["plain", "dict", "tuple"] = hyper(
        "plain", "inputs side by side, or apart for your own network: by name, or in order"
    )
    size: tuple[int, int] | None = hyper(
        None, "[height, width] to bring images to; not set: as they are", min=1, max=4096
    )
    standardize: bool = hyper(False, "quantities to mean 0 and deviation 1 of training rows")

    task: Literal["classification", "multilabel", "regression", "next-token", "sequence"] = hyper(
        "classification",
        "what the label is: a class, several that apply (0 or 1), a quantity, the next token of the"
        " input, or a class for every step of it",
    )
    metric: str | None = hyper(
        None, "what clients are judged by, or file.py:function; not set: the first of the task"
    )

    section = "data"

    def __post_init__(self) -> None:
        super().__post_init__()
        LearningTask(self.task, self.metric or "")
        if is_own(self.metric):
            object.__setattr__(self, "metric", whole(str(self.metric)))
        path = _whole(self.name)
        object.__setattr__(self, "name", str(path))
        if not path.exists():
            raise UserError(f"data '{path}': there is no such file or folder; see `idiolect data`")
        if path.is_file() and path.suffix.lower() not in SUFFIXES:
            raise UserError(f"data '{path}': files are {', '.join(SUFFIXES)}; convert it first")

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the input columns."""
        return (self.input,) if isinstance(self.input, str) else self.input

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the label columns that are given."""
        return (self.label,) if isinstance(self.label, str) else self.label or ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample; the files are read for it."""
        return tuple(self.load().x.shape[1:])

    @property
    def sample_form(self) -> Form:
        """What the numbers of a sample mean; the files are read for it."""
        pool = self.load()
        steps = pool.y.shape[1] if pool.task.per_step else 0
        return replace(pool.form, steps=steps)

    @property
    def names_clients(self) -> bool:
        """Whether the data itself says whose a sample is."""
        return self.load().group is not None

    def resolved(self) -> dict[str, Any]:
        """The config section with every setting filled in."""
        return {known.name: plain(getattr(self, known.name)) for known in fields(self)}

    @property
    def stamp(self) -> str:
        """Changes when one of the files does."""
        from idiolect.data.own.image_folders import below

        path = Path(self.name)
        found = below(path) if path.is_dir() else [path]
        stats = [(one, one.stat()) for one in found if one.is_file()]
        return repr([(str(one), about.st_size, about.st_mtime_ns) for one, about in stats])

    def load(self) -> Pool:
        """Every sample, read once per process as long as the files stay the same."""
        return _pool(self, self.stamp)

    def read(self, like: Read | None = None) -> Read:
        """x and y, and if there are: client, part; what the numbers of x mean. With `like`, which
        other files gave before, words have the numbers they had there."""
        from idiolect.data.own import array_files, image_folders, table_files

        path = Path(self.name)
        arrays = path.suffix.lower() == ".npz"
        images = path.is_dir() and bool(image_folders.found(path))
        if (arrays or images) and (self.tokens or self.categories):
            raise UserError(f"data '{path}': data.tokens and data.categories are for tables")
        if images and self.form != "plain":
            raise UserError(f"data '{path}': images in folders are one input; leave data.form out")
        if arrays:
            return array_files.read(path, self)
        if images:
            return Read(image_folders.read(path, self.size))
        return table_files.read(table_files.files_of(path), self, like)


def is_path(name: object) -> bool:
    """Whether a name of a config means files and not a dataset that is registered: it is written
    as a path, or a file with an ending is there."""
    if not isinstance(name, str) or not name or "\0" in name:
        return False
    if "/" in name or "\\" in name or name[0] in "~.":
        return True
    ending = Path(name).suffix
    return ending in SUFFIXES or (bool(ending) and os.path.isfile(name))


def own_files(section: dict[str, Any]) -> OwnFiles:
    """{"name": "table.csv", "label": "price"} -> OwnFiles(...)."""
    return make(OwnFiles, section, "your own data")


@lru_cache(maxsize=2)
def _pool(own: OwnFiles, stamp: str) -> Pool:
    columns, form, words, *_ = own.read()
    what = f"data '{own.name}'"
    if not len(columns["y"]):
        raise UserError(f"{what} has no samples")
    task = LearningTask(own.task, own.metric or "")
    y, names, classes = labels_of(columns["y"], task, words, own)
    group, group_names = None, None
    if "client" in columns:
        group, group_names = codes(names_of(columns["client"], f"{what}: the client"), what)
    part = _parts(columns, len(y), what)
    if own.standardize and columns["x"].dtype.kind != "f":
        kind = columns["x"].dtype
        raise UserError(f"{what}: data.standardize is for quantities, got {kind} inputs")
    return Pool(
        x=columns["x"],
        y=y,
        part=part,
        classes=classes,
        task=task,
        form=form,
        group=group,
        group_names=group_names or (),
        where=own.name,
        standardize=own.standardize,
        class_names=names,
    )


def labels_of(
    given: NDArray[Any],
    task: LearningTask,
    words: tuple[str, ...],
    own: OwnFiles,
    known: tuple[str, ...] = (),
) -> tuple[NDArray[Any], tuple[str, ...], int]:
    """The labels as a Federation holds them, their names (those known, if any), and how many
    outputs a network needs."""
    what = f"data '{own.name}': the label"
    if task.has_classes:
        y, names = codes(given, what, known)
        return y, names, len(names)
    if task.per_step:
        y, names = step_codes(given, what, known)
        return y, words or names, len(words) or max(int(y.max()) + 1, 1)
    quantities = targets(given, what)
    return quantities, own.labels, quantities.shape[1]


def _parts(columns: Columns, rows: int, what: str) -> np.ndarray:
    part = np.full(rows, TRAIN, np.uint8)
    if "part" in columns:
        words = names_of(columns["part"], f"{what}: the part")
        for word in np.unique(words):
            if word not in ("train", "test"):
                raise UserError(f"{what}: the part of a sample is train or test, not '{word}'")
        part[words == "test"] = TEST
    if not bool((part == TRAIN).any()):
        raise UserError(f"{what} has no training samples")
    return part


def _whole(name: str) -> Path:
    try:
        return Path(re.sub(r"^file://", "", name)).expanduser().absolute()
    except RuntimeError:
        raise UserError(f"data '{name}': there is no such home folder; write it out") from None
