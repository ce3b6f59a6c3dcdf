"""Which method is best, how sure that is, and who is harmed: in two sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from idiolect.report.load import Run
from idiolect.report.tables import Group, score
from idiolect.simulation import metrics

SURE = 0.05  # level of the test
FEWEST_PAIRS = 6  # with fewer, no outcome of the test can be below that level
TEST = "Wilcoxon signed-rank test, Holm-corrected"
NAMED = 5  # harmed clients and equal methods that are told by name


@dataclass(frozen=True)
class AgainstBest:
    """One method against the best one, client by client and seed by seed."""

    label: str
    behind: float  # mean over the pairs, in points where the metric is a share
    told: str  # the same for people
    pairs: int
    p: float | None  # None: too few pairs

    @property
    def is_worse(self) -> bool:
        """Whether that is more than chance."""
        return self.p is not None and self.p < SURE


def best_group(groups: Sequence[Group]) -> Group | None:
    known = [group for group in groups if group.accuracy is not None]
    return max(known, key=lambda group: group.goodness, default=None)


def comparisons(groups: Sequence[Group]) -> dict[str, AgainstBest]:
    """Every other method against the best one, by label."""
    best = best_group(groups)
    if best is None:
        return {}
    raw: dict[str, tuple[float, int, float | None]] = {}
    for group in groups:
        differences = _differences(best, group) if group is not best else np.zeros(0)
        if len(differences):
            raw[group.label] = (float(differences.mean()), len(differences), _p(differences))
    corrected = _holm({label: p for label, (_, _, p) in raw.items() if p is not None})
    return {
        label: AgainstBest(
            label, best.scale * mean, _told(best, best.scale * mean), pairs, corrected.get(label)
        )
        for label, (mean, pairs, _) in raw.items()
    }


def verdict(groups: Sequence[Group], found: Sequence[Run]) -> str:
    best = best_group(groups)
    if best is None or best.accuracy is None:
        return "Nothing was measured yet."
    unit = " %" if best.metric.share else ""
    told = f"{score(best.accuracy, best.metric.share)}{unit} mean {best.metric.name} over clients"
    first = f"{best.label} reaches {told}"
    others = comparisons(groups)
    if len(groups) > 1:
        first = f"{best.label} is best: {told}"
        first += _how_sure(others)
    return f"{first}. {_harmed(best, groups, found)}"


def _how_sure(others: Mapping[str, AgainstBest]) -> str:
    if not others:
        return "; no other method ran on the same clients, so nothing can be said of chance"
    next_best = min(others.values(), key=lambda one: one.behind)
    if next_best.p is None:
        return (
            f", {next_best.told} above {next_best.label}; {next_best.pairs} pairs of "
            "a client and a seed are too few for a test"
        )
    told = f", {next_best.told} above {next_best.label}, the next"
    equal = [one for one in others.values() if not one.is_worse]
    p = "< 0.001" if next_best.p < 0.001 else f"= {next_best.p:.2g}"
    by = f"({TEST}, {next_best.pairs} pairs of a client and a seed, p {p})"
    if not equal:
        return f"{told}, and better than every other method beyond chance {by}"
    names = _listed([one.label for one in equal])
    return f"{told}; not distinguishable from it: {names} {by}"


def _harmed(best: Group, groups: Sequence[Group], found: Sequence[Run]) -> str:
    if best.method == "local":
        many = len(groups) > 1
        return "Training alone is best: no other method helps on average." if many else ""
    gains: dict[int, list[float]] = {}
    names: dict[int, str] = {}
    for run, _, gain in best.gains(found):
        names |= run.names
        for client, value in zip(gain["clients"], gain["per_client"], strict=True):
            gains.setdefault(int(client), []).append(best.scale * value)
    if not gains:
        return "Who is harmed is not known: no local run on the same clients is here."
    means = {client: float(np.mean(values)) for client, values in gains.items()}
    worse = sorted((value, client) for client, value in means.items() if value < 0)
    if not worse:
        return f"None of its {len(means)} clients is worse off than when it trains alone."
    told = _listed(
        [
            f"{names.get(client, f'client {client}')} ({_told(best, value)})"
            for value, client in worse
        ]
    )
    return f"It harms {len(worse)} of {len(means)} clients, compared with training alone: {told}."


def _told(group: Group, value: float) -> str:
    return f"{value:.1f} points" if group.metric.share else f"{value:.3g}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _differences(best: Group, other: Group) -> np.ndarray:
    """How much better each client is off, for the seeds on the same clients."""
    found: list[float] = []
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
    return float(wilcoxon(moved, method="approx").pvalue) if len(moved) else 1.0


def _holm(values: Mapping[str, float]) -> dict[str, float]:
    """Corrected for as many tests as there are: Holm's step-down procedure."""
    corrected: dict[str, float] = {}
    largest = 0.0
    for n, (label, p) in enumerate(sorted(values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, p * (len(values) - n)))
        corrected[label] = largest
    return corrected
