"""Dataset: what all datasets share. They are found, decoded, checked and normalised alike."""

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from idiolect.core import own_code, rng
from idiolect.core.fields import hyper
from idiolect.core.form import PLAIN, Form
from idiolect.core.registry import Named, Registry
from idiolect.core.task import LearningTask
from idiolect.core.text import reason
from idiolect.data import places
from idiolect.data.cache import Columns, cached
from idiolect.data.layouts import Found, Layout
from idiolect.data.pool import TEST, TRAIN, Pool
from idiolect.errors import UserError

MeanStd = tuple[tuple[float, ...], tuple[float, ...]]  # a value per channel, or one for all
Constants = dict[str, MeanStd | None]

HALF: MeanStd = ((0.5,), (0.5,))
FOR_ALL: Constants = {"fedas": HALF, "pflego": None, "none": None}


@dataclass(frozen=True)
class Dataset(Named):
    """A dataset. Class attributes are facts about it, fields are the options of `data:`."""

    normalize: Literal["default", "spfl", "feddwa", "fedas", "pflego", "none"] = hyper(
        "default", "whose mean and standard deviation; pflego and none: only x / 255"
    )
    rows: tuple[int, int] | None = hyper(None, "[train, test] samples; not set: the official ones")

    sample: tuple[int, int] | None = hyper(
        None, "[train, test] samples drawn at random, the same in every run; not set: all"
    )
    metric: str | None = hyper(
        None, "what clients are judged by, or file.py:function; not set: accuracy"
    )

    section = "data"
    registry: ClassVar[Registry] = Registry("data")
    shape: ClassVar[tuple[int, ...]] = (1, 28, 28)
    classes: ClassVar[int] = 10
    official: ClassVar[tuple[int, int] | None] = None  # train and test samples
    other_folders: ClassVar[tuple[str, ...]] = ()  # besides one of the dataset's name
    hub_repository: ClassVar[str | None] = None  # on the Hugging Face hub
    files_wanted: ClassVar[str] = ""  # for the message when there are none
    sha256: ClassVar[str] = ""  # of images then labels, only where copies are lossless
    constants: ClassVar[Constants] = {"default": HALF}  # as published, by `normalize`

    def __post_init__(self) -> None:
        super().__post_init__()
        LearningTask(self.task, self.metric or "")
        if own_code.is_own(self.metric):
            object.__setattr__(self, "metric", own_code.whole(str(self.metric)))
        usable = {**FOR_ALL, **self.constants}
        if self.normalize not in usable:
            raise UserError(
                f"normalize '{self.normalize}' is not published for {self.name};"
                f" use {', '.join(sorted(usable))}"
            )

    names_clients: ClassVar[bool] = False  # whether samples come by client unless told otherwise
    task: ClassVar[str] = "classification"
    sample_form: ClassVar[Form] = PLAIN
    stamp: ClassVar[str] = ""  # changes when the data does, within a process

    @property
    def n_classes(self) -> int:
        """Number of classes with these options."""
        return self.classes

    @property
    def expected(self) -> tuple[int, int] | None:
        """Train and test samples in the official files with these options."""
        return self.official

    @property
    def cache_name(self) -> str:
        """Name of the decoded copy: options that change the decoded data are part of it."""
        return self.name

    def resolved(self) -> dict[str, Any]:
        """Without a metric of its own, a section is what it was before there were any."""
        section = super().resolved()
        return {k: v for k, v in section.items() if k != "metric" or v is not None}

    def layouts(self) -> tuple[Layout, ...]:
        """The ways in which its files may lie in a folder; the first that fits is used."""
        raise NotImplementedError

    def extended(self, columns: Columns) -> Columns:
        """Samples and columns that are quicker computed than read from the cache."""
        return columns

    def find(self) -> Found | None:
        """Its files, in the first place that has them; None if no place has them."""
        for root in places.roots():
            for folder in (self.name, *self.other_folders):
                for layout in self.layouts():
                    if (found := layout(root / folder)) is not None:
                        return found
        return None

    def load(self) -> Pool:
        """Every sample: found or downloaded, decoded or read from the cache, and checked."""
        found = self.find() or self._downloaded()
        columns = self._columns(found)
        self._check_rows(columns, found)
        columns = _drawn(self.extended(columns), self.sample)
        mean_std = {**FOR_ALL, **self.constants}[self.normalize]
        return Pool(
            x=columns["x"],
            y=columns["y"],
            part=columns["part"],
            classes=self.n_classes,
            group=columns.get("group"),
            group_names=tuple(str(n) for n in columns.get("group_names", ())),
            drawing=columns.get("drawing"),
            where=str(found.where),
            mean=mean_std[0] if mean_std else None,
            std=mean_std[1] if mean_std else None,
            task=LearningTask(self.task, self.metric or ""),
        )

    def _downloaded(self) -> Found:
        if self.hub_repository and places.hub_installed():
            places.download(self.name, self.hub_repository)
            if (found := self.find()) is not None:
                return found
        raise self.not_found()

    def not_found(self) -> UserError:
        """The error that says where its files were looked for and how to get them."""
        looked = ", ".join(str(root / self.name) for root in places.roots())
        ways = [f"put {self.files_wanted} in one of them (IDIOLECT_DATA names the first)"]
        if self.hub_repository:
            ways.append(f"or install idiolect[hub] to fetch {self.hub_repository}")
        return UserError(f"dataset '{self.name}' not found in {looked}; {', '.join(ways)}")

    def _columns(self, found: Found) -> Columns:
        def decode() -> Columns:
            try:
                columns = found.decode()
            except MemoryError:
                raise
            except UserError as error:
                raise UserError(self._named(error, found)) from None
            except Exception as error:  # other people's files: anything may be missing in them
                raise UserError(
                    f"{self.name} in {found.where} cannot be read ({reason(error)}); get it again"
                ) from None
            self._check(columns, found)
            return columns

        return cached(self.cache_name, found.stamps, decode) if found.stamps else decode()

    def _named(self, error: UserError, found: Found) -> str:
        """The message of an error, with the dataset's place where it names none."""
        told = str(error)
        return told if str(found.where) in told else f"{self.name} in {found.where}: {told}"

    def _check_rows(self, columns: Columns, found: Found) -> None:
        wanted = self.rows or self.expected
        got = tuple(int((columns["part"] == kind).sum()) for kind in (TRAIN, TEST))
        if wanted is not None and got != wanted:
            raise UserError(
                f"{self.name} in {found.where} has {got[0]} train and {got[1]} test samples,"
                f" expected {wanted[0]} and {wanted[1]}; get it again, or set data.rows for a"
                " variant"
            )

    def _check(self, columns: Columns, found: Found) -> None:
        x, y = columns["x"], columns["y"]
        self._check_rows(columns, found)
        for key in ("x", "part", "group"):
            if key in columns and len(columns[key]) != len(y):
                raise UserError(
                    f"{self.name} in {found.where} has {len(columns[key])} rows of {key} for"
                    f" {len(y)} labels; get it again"
                )
        if x.dtype != np.uint8:
            raise UserError(
                f"{self.name} in {found.where}: images hold {x.dtype} values, expected bytes"
            )
        shape = type(self).shape  # as in the files: an option may make other images of them
        if x.shape != (len(y), *shape):
            raise UserError(
                f"{self.name} in {found.where}: samples have shape {list(x.shape[1:])},"
                f" expected {list(shape)}"
            )
        if len(y) and (y.min() < 0 or y.max() >= self.n_classes):
            raise UserError(
                f"{self.name} in {found.where}: labels run from {y.min()} to {y.max()},"
                f" expected 0 to {self.n_classes - 1}"
            )
        if self.sha256 and self.rows in (None, self.official):
            digest = hashlib.sha256(np.ascontiguousarray(x).data)
            digest.update(y.astype(np.uint8).tobytes())
            if digest.hexdigest() != self.sha256:
                raise UserError(
                    f"{self.name} in {found.where} is not the original data; get it again"
                )


def _drawn(columns: Columns, sample: tuple[int, int] | None) -> Columns:
    """The columns of a random part of the samples, in their old order."""
    if sample is None:
        return columns
    kept = []
    for kind, wanted in zip((TRAIN, TEST), sample, strict=True):
        rows = np.flatnonzero(columns["part"] == kind)
        if wanted > len(rows):
            raise UserError(f"data.sample asks for {wanted} of {len(rows)} samples; lower it")
        kept.append(rng.keyed(0, "sample", str(kind)).permutation(rows)[:wanted])
    rows = np.sort(np.concatenate(kept))
    per_sample = len(columns["part"])
    whole = ("group_names",)
    return {k: v if k in whole or len(v) != per_sample else v[rows] for k, v in columns.items()}
