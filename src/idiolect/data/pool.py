"""Pool: every sample of a dataset once, before it is split over clients."""

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

TRAIN, TEST = 0, 1


@dataclass(frozen=True, eq=False)
class Pool:
    """Every sample of a dataset once, in the order of its files. A split divides it."""

    x: NDArray[np.uint8]  # [M, C, H, W]
    y: NDArray[np.int64]  # [M]
    part: NDArray[np.uint8]  # [M], TRAIN or TEST: the division its authors made
    classes: int
    group: NDArray[np.int64] | None = None  # [M], index into group_names: writer, alphabet
    group_names: tuple[str, ...] = ()
    drawer: NDArray[np.int64] | None = None  # [M], who drew it (Omniglot)
    drawing: NDArray[np.int64] | None = None  # [M], equal for rotations of one drawing
    where: str = ""  # the files it was read from
    mean: tuple[float, ...] | None = None  # per channel, after the division by 255
    std: tuple[float, ...] | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def has_test(self) -> bool:
        """Whether the authors set a test part aside."""
        return bool((self.part == TEST).any())

    def thinned(self, share: float) -> Self:
        """The first samples of every class in either part, this share of them and at least one."""
        kept = np.zeros(len(self), dtype=bool)
        for part in np.unique(self.part):
            for label in np.unique(self.y):
                rows = np.flatnonzero((self.part == part) & (self.y == label))
                kept[rows[: math.ceil(share * len(rows))]] = True
        columns = ("x", "y", "part", "group", "drawer", "drawing")
        values = {name: getattr(self, name) for name in columns}
        return replace(self, **{k: v[kept] for k, v in values.items() if v is not None})
