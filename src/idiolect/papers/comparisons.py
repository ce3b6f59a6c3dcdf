"""One mean over seeds against zero, as every claim of a paper comes down to.

It is tested by a one-sided t test at 5 % (the interval shown is the two-sided 90 % one); that a
mean lies between two bounds, by both one-sided tests (TOST).

Where the numbers compared are the same in every seed (sizes, FLOPs), nothing is left to chance and
the sign decides; a tie decides nothing. Where only their difference is, as of accuracies that agree
in two seeds, its spread is taken for a ten-thousandth of the numbers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

LEVEL = 0.05
SAME = 1e-9  # relative; what is nearer is equal
LEAST_SPREAD = 1e-4  # relative; of numbers that differ from seed to seed
Seeds = Mapping[int, float]
Parts = Mapping[int, Sequence[float]]  # seed -> the numbers that are compared


@dataclass(frozen=True)
class Comparison:
    """One mean over seeds that a claim says is above zero."""

    what: str
    group: str  # those of one group are tested together: a column, or a row for trends
    seeds: tuple[int, ...]
    mean: float
    low: float
    high: float
    p_holds: float
    p_fails: float
    constant: bool = False  # the numbers are the same in every seed: there was no test

    @property
    def n(self) -> int:
        return len(self.seeds)


def holm(p_values: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Which hypotheses are rejected when all are tested together (Holm's step-down rule)."""
    order = sorted(range(len(p_values)), key=lambda k: p_values[k])
    rejected = [False] * len(p_values)
    for step, k in enumerate(order):
        if p_values[k] > level / (len(p_values) - step):
            break
        rejected[k] = True
    return rejected


def compared(what: str, group: str, values: Seeds, parts: Parts | None = None) -> Comparison:
    """One mean over seeds against zero: t test, interval, both directions. `parts`: the numbers
    that `values` were computed from."""
    seeds = tuple(sorted(values))
    n = len(seeds)
    if n == 0:
        return Comparison(what, group, (), math.nan, math.nan, math.nan, 1.0, 1.0)
    mean = math.fsum(values.values()) / n
    if n == 1:
        return Comparison(what, group, seeds, mean, -math.inf, math.inf, 1.0, 1.0)
    from scipy.stats import t

    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values.values()) / (n - 1))
    size = max([1.0, abs(mean), *(abs(x) for s in seeds for x in (parts or {}).get(s, ()))])
    if spread < SAME * size:
        if parts is None or _constant(parts):  # nothing is left to chance; a tie is neither way
            above, below = mean > SAME * size, mean < -SAME * size
            return Comparison(what, group, seeds, mean, mean, mean, 1.0 - above, 1.0 - below, True)
        spread = LEAST_SPREAD * size
    error = spread / math.sqrt(n)
    half = float(t.ppf(1 - LEVEL, n - 1)) * error
    p = float(t.sf(mean / error, n - 1))
    return Comparison(what, group, seeds, mean, mean - half, mean + half, p, 1 - p)


def _constant(parts: Parts) -> bool:
    """Whether the numbers are the same in every seed."""
    each = zip(*parts.values(), strict=True)
    return all(max(own) - min(own) <= SAME * max(1.0, *map(abs, own)) for own in each)


def inside(what: str, group: str, values: Seeds, parts: Parts, bound: float) -> Comparison:
    """A mean at most `bound` from zero: both one-sided tests (TOST)."""
    plain = compared(what, group, values, parts)
    bound += 2 * SAME * max([1.0, *(abs(x) for own in parts.values() for x in own)])  # on it is in
    above = compared(what, group, {s: v + bound for s, v in values.items()}, parts)
    below = compared(what, group, {s: bound - v for s, v in values.items()}, parts)
    p_holds = max(above.p_holds, below.p_holds)
    p_fails = min(1.0, 2 * min(above.p_fails, below.p_fails))
    return replace(plain, p_holds=p_holds, p_fails=p_fails)
