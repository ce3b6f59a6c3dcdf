"""What all datasets share: look-up, checks, normalisation."""

import hashlib
import zipfile
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from idiolect.core.fields import Checked, hyper
from idiolect.data import places
from idiolect.data.cache import Columns, cached
from idiolect.data.layouts import Found, Layout
from idiolect.data.pool import TEST, TRAIN, Table
from idiolect.errors import UserError, did_you_mean

Constants = tuple[tuple[float, ...], tuple[float, ...]]
ByPaper = dict[str, Constants | None]

HALF: Constants = ((0.5,), (0.5,))


@dataclass(frozen=True)
class Source(Checked):
    """A dataset. Class attributes are facts about it, fields are the options of `data:`."""

    normalize: str = hyper(
        "default", "whose constants: default, spfl, feddwa, fedas, pflego (x / 255) or none"
    )
    rows: tuple[int, int] | None = hyper(
        None, "expected [train, test] samples of your own variant; not set: the official ones"
    )

    name: ClassVar[str]
    section: ClassVar[str] = "data"
    shape: ClassVar[tuple[int, ...]] = (1, 28, 28)
    classes: ClassVar[int] = 10
    official: ClassVar[tuple[int, int] | None] = None
    folders: ClassVar[tuple[str, ...]] = ()
    hub: ClassVar[str | None] = None
    get: ClassVar[str] = ""
    sha256: ClassVar[str | None] = None  # of images then labels, only where copies are lossless
    constants: ClassVar[ByPaper] = {"default": HALF}

    @property
    def n_classes(self) -> int:
        return self.classes

    @property
    def expected(self) -> tuple[int, int] | None:
        """Samples in the official files."""
        return self.official

    @property
    def cache_name(self) -> str:
        """Options that change the decoded data, as part of the cache's file name."""
        return self.name

    def layouts(self) -> tuple[Layout, ...]:
        raise NotImplementedError

    def finish(self, columns: Columns) -> Columns:
        """What is quicker done again than read from the cache."""
        return columns

    def find(self) -> Found | None:
        for root in places.roots():
            for folder in (self.name, *self.folders):
                for layout in self.layouts():
                    if (found := layout(root / folder)) is not None:
                        return found
        return None

    def fetch(self) -> Found:
        """Found on disk, else brought from the hub."""
        if (found := self.find()) is not None:
            return found
        if self.hub and places.hub_installed():
            places.fetch(self.name, self.hub)
            if (found := self.find()) is not None:
                return found
        raise UserError(self._missing())

    def load(self) -> Table:
        constants = self._mean_std()
        columns, where = self._columns()
        self._check_rows(columns, where)
        columns = self.finish(columns)
        return Table(
            x=columns["x"],
            y=columns["y"],
            part=columns["part"],
            classes=self.n_classes,
            group=columns.get("group"),
            group_names=tuple(str(n) for n in columns.get("group_names", ())),
            drawer=columns.get("drawer"),
            drawing=columns.get("drawing"),
            where=where,
            mean=constants[0] if constants else None,
            std=constants[1] if constants else None,
        )

    def _columns(self) -> tuple[Columns, str]:
        found = self.fetch()
        where = str(found.where)

        def decode() -> Columns:
            try:
                columns = found.decode()
            except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
                reason = " ".join(str(error).split())[:120]
                raise UserError(
                    f"{self.name} in {where} cannot be read ({reason}); get it again"
                ) from None
            self._check(columns, where)
            return columns

        return cached(self.cache_name, found.stamps, decode), where

    def _missing(self) -> str:
        looked = ", ".join(str(root / self.name) for root in places.roots())
        ways = [f"put {self.get} in one of them (IDIOLECT_DATA names the first)"]
        if self.hub:
            ways.append(f"or install idiolect[hub] to fetch {self.hub}")
        return f"dataset '{self.name}' not found in {looked}; {', '.join(ways)}"

    def _mean_std(self) -> Constants | None:
        if self.normalize in ("none", "pflego"):
            return None
        if self.normalize == "fedas":
            return HALF
        if self.normalize in self.constants:
            return self.constants[self.normalize]
        known = ("default", "spfl", "feddwa", "fedas", "pflego", "none")
        if self.normalize not in known:
            raise did_you_mean(self.normalize, known, "normalize")
        usable = sorted({*self.constants, "fedas", "pflego", "none"})
        raise UserError(
            f"normalize '{self.normalize}' is not published for {self.name};"
            f" use {', '.join(usable)}"
        )

    def _check_rows(self, columns: Columns, where: str) -> None:
        wanted = self.rows or self.expected
        got = tuple(int((columns["part"] == kind).sum()) for kind in (TRAIN, TEST))
        if wanted is not None and got != tuple(wanted):
            raise UserError(
                f"{self.name} in {where} has {got[0]} train and {got[1]} test samples, expected"
                f" {wanted[0]} and {wanted[1]}; get it again, or set data.rows for a variant"
            )

    def _check(self, columns: Columns, where: str) -> None:
        x, y = columns["x"], columns["y"]
        self._check_rows(columns, where)
        if x.shape != (len(y), *self.shape):
            raise UserError(
                f"{self.name} in {where}: samples have shape {list(x.shape[1:])},"
                f" expected {list(self.shape)}"
            )
        if len(y) and (y.min() < 0 or y.max() >= self.n_classes):
            raise UserError(
                f"{self.name} in {where}: labels run from {y.min()} to {y.max()},"
                f" expected 0 to {self.n_classes - 1}"
            )
        if self.sha256 and self.rows in (None, self.official):
            digest = hashlib.sha256(np.ascontiguousarray(x).data)
            digest.update(y.astype(np.uint8).tobytes())
            if digest.hexdigest() != self.sha256:
                raise UserError(f"{self.name} in {where} is not the original data; get it again")
