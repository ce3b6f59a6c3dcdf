"""Which method is best, how sure that is, and who is harmed: in two sentences."""

from collections.abc import Mapping, Sequence

import numpy as np

from idiolect.report.load import Run
from idiolect.report.run_groups import Group
from idiolect.report.significance import SMALLER, TEST, AgainstBest, best_group, comparisons
from idiolect.report.tables import score

NAMED = 5  # harmed clients and equal methods that are told by name


def verdict(groups: Sequence[Group], found: Sequence[Run]) -> str:
    best = best_group(groups)
    if best is None or best.accuracy is None:
        return "Nothing was measured yet."
    if best.diverged:
        return f"Diverged: {_listed([one.label for one in groups])}. {SMALLER}."
    unit = " %" if best.metric.share else ""
    told = f"{score(best.accuracy, best.metric.share)}{unit} mean {best.metric.name} over clients"
    first = f"{best.label} reaches {told}"
    others = comparisons(groups)
    if len(groups) > 1:
        first = f"{best.label} is best: {told}"
        first += _how_sure(best, others)
    lost = [one.label for one in groups if one.diverged]
    left_out = f" Diverged, and not compared: {_listed(lost)}." if lost else ""
    return f"{first}. {_harmed(best, groups, found)}{left_out}"


def _how_sure(best: Group, others: Mapping[str, AgainstBest]) -> str:
    if not others:
        return "; no other method ran on the same clients, so nothing can be said of chance"
    next_best = min(others.values(), key=lambda one: one.behind)
    side = "below" if best.metric.lower else "above"
    ahead = f"{best.difference(next_best.behind)} {side}"
    if next_best.p is None:
        return (
            f", {ahead} {next_best.label}; {next_best.pairs} pairs of "
            "a client and a seed are too few for a test"
        )
    told = f", {ahead} {next_best.label}, the next"
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
            f"{names.get(client, f'client {client}')} ({best.difference(value)})"
            for value, client in worse
        ]
    )
    return f"It harms {len(worse)} of {len(means)} clients, compared with training alone: {told}."


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
