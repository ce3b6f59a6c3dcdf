"""Pool: every sample of a dataset once, before it is split over clients."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idiolect.core.form import PLAIN, Form
from idiolect.core.task import CLASSIFICATION, LearningTask

TRAIN, TEST = 0, 1


@dataclass(frozen=True, eq=False)
class Pool:
    """Every sample of a dataset once, in the order of its files. A split divides it."""

    x: NDArray[Any]  # uint8 [M, C, H, W]; own data also int64 and float32 of other shapes
    y: NDArray[Any]  # int64 [M], or [M, T] by step; without classes float32 [M, targets]
    part: NDArray[np.uint8]  # [M], TRAIN or TEST: the division its authors made
    classes: int  # without classes: targets of a sample
    group: NDArray[np.int64] | None = None  # [M], index into group_names: writer, alphabet
    group_names: tuple[str, ...] = ()
    drawing: NDArray[np.int64] | None = None  # [M], equal for rotations of one drawing
    where: str = ""  # the files it was read from
    mean: tuple[float, ...] | None = None  # per channel, after the division by 255
    std: tuple[float, ...] | None = None
    standardize: bool = False  # mean and std are those of the training rows, once they are known
    task: LearningTask = CLASSIFICATION
    form: Form = PLAIN  # what the numbers of x mean
    class_names: tuple[str, ...] = ()  # where classes are words of the data

    def __len__(self) -> int:
        return len(self.y)

    @property
    def has_test(self) -> bool:
        """Whether the authors set a test part aside."""
        return bool((self.part == TEST).any())
