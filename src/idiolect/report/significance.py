"""Whether the best method is better than the others by more than chance: decides what is bold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from idiolect.report.run_groups import Group
from idiolect.simulation import metrics

SURE = 0.05  # level of the test
FEWEST_PAIRS = 6  # with fewer, no outcome of the test can be below that level
TEST = "Wilcoxon signed-rank test, Holm-corrected"
BOLD = (
    f"bold: the best, and what is not distinguishable from it ({TEST}, pairs of a client and a "
    f"seed, level {SURE})"
)
NOTHING_BOLD = f"nothing is bold: a test needs {FEWEST_PAIRS} pairs of a client and a seed"

SMALLER = "Lower the learning rate (--set method.lr=...), or bring inputs and targets near 1"


@dataclass(frozen=True)
class AgainstBest:
    """One method against the best one, client by client and seed by seed."""

    label: str
    behind: float  # mean over the pairs, in points where the metric is a share
    pairs: int
    p: float | None  # None: too few pairs

    @property
    def is_worse(self) -> bool:
        """Whether that is more than chance."""
        return self.p is not None and self.p < SURE


def best_group(groups: Sequence[Group]) -> Group | None:
    """One that diverged is best only where all did."""
    known = [group for group in groups if group.accuracy is not None]
    sound = [group for group in known if not group.diverged]
    return max(sound or known, key=lambda group: group.goodness, default=None)


def comparisons(groups: Sequence[Group]) -> dict[str, AgainstBest]:
    """Every other method that did not diverge against the best one, by label."""
    best = best_group(groups)
    if best is None:
        return {}
    raw: dict[str, tuple[float, int, float | None]] = {}
    for group in groups:
        other = group is not best and not group.diverged
        differences = _differences(best, group) if other else np.zeros(0)
        if len(differences):
            raw[group.label] = (float(differences.mean()), len(differences), _p(differences))
    corrected = _holm({label: p for label, (_, _, p) in raw.items() if p is not None})
    return {
        label: AgainstBest(label, best.scale * mean, pairs, corrected.get(label))
        for label, (mean, pairs, _) in raw.items()
    }


def standings(groups: Sequence[Group]) -> dict[str, str]:
    """`best`, `equal` (not distinguishable from the best) or `worse`, by label; a method that could
    not be tested has no standing, nor has the best one if no other could."""
    tested = {one.label: one for one in comparisons(groups).values() if one.p is not None}
    best = best_group(groups)
    found = {label: "worse" if one.is_worse else "equal" for label, one in tested.items()}
    return found | ({best.label: "best"} if best and tested else {})


def _differences(best: Group, other: Group) -> np.ndarray:
    """How much better each client is off, for the seeds on the same clients."""
    found: list[float] = []
    if best.metric is not other.metric:
        return np.zeros(0)
    for ours in best.runs:
        for theirs in other.runs:
            if any(ours.config[key] != theirs.config[key] for key in ("data", "split", "seed")):
                continue
            mine = metrics.client_accuracy(ours.table)
            yours = metrics.client_accuracy(theirs.table)
            sign = best.metric.sign
            found += [sign * (mine[k][0] - yours[k][0]) for k in mine if k in yours]
    return np.asarray(found)


def _p(differences: np.ndarray) -> float | None:
    from scipy.stats import wilcoxon

    if len(differences) < FEWEST_PAIRS:
        return None
    moved = differences[np.abs(differences) > 1e-12]
    if not len(moved):
        return 1.0
    # Two-sided, but for the best alone: its mean may rest on a few clients, while the ranks of all
    # speak for the other one.
    return min(1.0, 2 * float(wilcoxon(moved, method="approx", alternative="greater").pvalue))


def _holm(values: Mapping[str, float]) -> dict[str, float]:
    """Corrected for as many tests as there are: Holm's step-down procedure."""
    corrected: dict[str, float] = {}
    largest = 0.0
    for n, (label, p) in enumerate(sorted(values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, p * (len(values) - n)))
        corrected[label] = largest
    return corrected
