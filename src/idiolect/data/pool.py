"""A dataset in memory: what a source gives and a split divides."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

TRAIN, TEST = 0, 1


@dataclass(frozen=True, eq=False)
class Table:
    """Every sample of a dataset once, in the order of its files."""

    x: NDArray[np.uint8]  # [M, C, H, W]
    y: NDArray[np.int64]  # [M]
    part: NDArray[np.uint8]  # [M], TRAIN or TEST: the division its authors made
    classes: int
    group: NDArray[np.int64] | None = None  # [M], index into group_names: writer, alphabet
    group_names: tuple[str, ...] = ()
    drawer: NDArray[np.int64] | None = None  # [M], who drew it (Omniglot)
    drawing: NDArray[np.int64] | None = None  # [M], equal for rotations of one drawing
    where: str = ""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    info: dict[str, object] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def has_test(self) -> bool:
        """Did the authors set a test part aside?"""
        return bool((self.part == TEST).any())
