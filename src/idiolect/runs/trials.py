"""Trials: the points of a grid, what each is worth on validation samples, and which is best.

`compare --tune` and the tuned rows of recipes choose by these. Test samples have no say: of a run's
table only the scores on validation samples are read.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TypeVar

import numpy as np

from idiolect.errors import UserError
from idiolect.simulation import metrics

T = TypeVar("T")


def points(axes: Mapping[str, Sequence[T]]) -> list[dict[str, T]]:
    """All combinations of the values, one of each key: one empty point if there are no keys."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def worth(
    rounds: Mapping[int, metrics.Table],
    diverged: bool,
    protocol: str = "default",
    personal_model: bool = True,
) -> float | None:
    """A run's number of the protocol, of validation samples instead of test samples; more is
    better. None if the run diverged: it cannot win with what it was before."""
    last = rounds[max(rounds)]
    if not metrics.has_validation(last):
        raise UserError("there are no validation samples to choose on; raise split.val_share")
    if diverged:
        return None
    judged = {t: metrics.on_validation(rows) for t, rows in rounds.items()}
    value = metrics.protocol_value(judged, protocol, personal_model)["value"]
    if value is None or not math.isfinite(value):
        return None
    return metrics.metric_of(last).sign * float(value)


def mean_worth(worths: Sequence[float | None]) -> float | None:
    """Over seeds; None if one of them is lost, so that a point cannot win by its lucky seeds."""
    known = [one for one in worths if one is not None]
    return float(np.mean(known)) if known and len(known) == len(worths) else None


def rank(worth: float | None) -> float:
    """What is lost comes last."""
    return -math.inf if worth is None else worth
