"""Whether a claim of a paper holds, by paired differences over seeds.

Every claim is a set of comparisons. A comparison has one value per seed, and the claim says that
its mean is above zero: A - B for `beats`, `best` and `order` (same seed, same split and start), the
change along a fitted line for `trend`, the distance to a constant otherwise. `near`, `within`,
`ratio` and `flat` say that a mean lies between two bounds, `flat` of any two places. No step of a
`trend` may be significantly the other way; with `steps` every one must be significant, and no line
is fitted.

*Holds*: all comparisons of each column are significant, the columns by Holm's correction; within a
column all must be, so there the largest p counts and needs no correction. *Does not hold*: at least
one comparison is significantly the other way round, by Holm's correction over all of them, those
that still lack seeds included. Otherwise, with fewer than two seeds in a comparison, and where a
seed diverged, there is *not enough evidence*; the reason names what speaks against the claim by its
own interval, which the correction or missing rows keep from a verdict.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Literal

from idiolect.papers.comparisons import LEVEL, Comparison, Seeds, compared, holm, inside
from idiolect.papers.recipe import Claim, Recipe

Seedings = Mapping[tuple[str, str], Collection[int]]  # row, column -> seeds
Values = Mapping[tuple[str, str, str], Seeds]  # row, column, metric -> seed -> value
Lookup = Callable[[str, str], Seeds]  # row, column
Answer = Literal["holds", "does not hold", "not enough evidence"]


@dataclass(frozen=True)
class Verdict:
    """The answer to a claim, and what it rests on."""

    claim: Claim
    answer: Answer
    reason: str
    test: str
    comparisons: tuple[Comparison, ...]
    quick: bool = False

    @property
    def line(self) -> str:
        mark = "QUICK (shrunk, no evidence about the paper): " if self.quick else ""
        return f"{mark}{self.answer}: {self.claim.says} [{self.reason}; {self.test}]"


def judge(
    recipe: Recipe, values: Values, quick: bool = False, diverged: Seedings | None = None
) -> list[Verdict]:
    """A verdict on every claim of a recipe; `quick`: on the cells of --quick."""
    recipe = recipe.shrunk() if quick else recipe
    return [verdict(recipe, claim, values, quick, diverged) for claim in recipe.claims]


def verdict(
    recipe: Recipe,
    claim: Claim,
    values: Values,
    quick: bool = False,
    diverged: Seedings | None = None,
) -> Verdict:
    made = _comparisons(recipe, claim, values)
    groups: dict[str, list[Comparison]] = {}
    for one in made:
        groups.setdefault(one.group, []).append(one)
    known = [one for one in made if one.n >= 2]
    against = holm([one.p_fails for one in made])  # 1 where seeds are lacking
    test = _test_name(claim, len(groups), known) + _tuned(recipe, claim)
    reversed_ = [one for one, sure in zip(made, against, strict=True) if sure]
    if reversed_:
        worst = min(reversed_, key=lambda one: one.p_fails)
        reason = f"{_interval(claim, worst)}{_more(len(reversed_) - 1)}"
        return Verdict(claim, "does not hold", reason, test, tuple(made), quick)
    if not made or len(known) < len(made):
        whole = [group for group in groups.values() if all(one.n >= 2 for one in group)]
        sure = holm([max(one.p_holds for one in group) for group in whole])
        reason = f"{len(whole)} of {len(groups)} have two seeds or more"
        reason += f", it holds in {sum(sure)} of these" if whole else ""
        reason = "; ".join(filter(None, (reason, _against(claim, made))))
        return Verdict(claim, "not enough evidence", reason, test, tuple(made), quick)
    weakest = max(known, key=lambda one: one.p_holds)
    sure = holm([max(one.p_holds for one in group) for group in groups.values()])
    lost = [
        f"{row} in {column} diverged in seed {', '.join(map(str, sorted(seeds)))}"
        for row, column in sorted(recipe.places_of(claim))
        if (seeds := (diverged or {}).get((row, column), ()))
    ]
    answer: Answer = "holds" if all(sure) and not lost else "not enough evidence"
    prefix = "weakest: " if len(known) > 1 else ""
    found = _against(claim, made) or prefix + _interval(claim, weakest)
    reason = "; ".join((found, *lost))
    return Verdict(claim, answer, reason, test, tuple(made), quick)


def _comparisons(recipe: Recipe, claim: Claim, values: Values) -> list[Comparison]:
    def of(row: str, column: str) -> Seeds:
        metric = claim.metric or recipe.metric_of(row, column)
        return values.get((row, column, metric), {})

    if claim.kind == "trend":
        return _trends(recipe, claim, of)
    if claim.kind == "near":
        return _distances(recipe, claim, of)
    if claim.kind in ("within", "ratio"):
        return _alike(recipe, claim, of)
    made: list[Comparison] = []
    sign = -1.0 if claim.lower else 1.0
    margin = f" {'+' if claim.by < 0 else '-'} {abs(claim.by):g}" if claim.by else ""
    for column in recipe.columns_of(claim):
        for better, worse in _pairs(recipe, claim, column):
            pair = _paired(of(better, column), of(worse, column))
            gaps = {seed: sign * (a - b) - claim.by for seed, (a, b) in pair.items()}
            what = f"{better} - {worse}" if sign > 0 else f"{worse} - {better}"
            made.append(compared(f"{what}{margin} in {column}", column, gaps, pair))
        if claim.kind in ("above", "below"):
            way = 1.0 if claim.kind == "above" else -1.0
            for row in (r for r in claim.about if recipe.has_cell(r, column)):
                own = of(row, column)
                gaps = {s: way * (v - (claim.value or 0.0)) for s, v in own.items()}
                what = f"{row} {claim.kind} {claim.value:g} in {column}"
                made.append(compared(what, column, gaps, {s: (v,) for s, v in own.items()}))
    return made


def _pairs(recipe: Recipe, claim: Claim, column: str) -> list[tuple[str, str]]:
    """(better, worse) as the claim says, among the rows that have this column."""
    if claim.kind == "best":
        rivals = claim.among or tuple(row.id for row in recipe.rows if not row.extra)
        pairs = [(a, b) for a in claim.about for b in rivals if b not in claim.about]
    elif claim.kind == "order":
        pairs = list(zip(claim.rows, claim.rows[1:], strict=False))
    else:  # nothing is beaten in above and below
        pairs = [(a, b) for a in claim.about for b in claim.beaten if a != b]
    return [(a, b) for a, b in pairs if recipe.has_cell(a, column) and recipe.has_cell(b, column)]


def _alike(recipe: Recipe, claim: Claim, of: Lookup) -> list[Comparison]:
    """Two rows that differ by at most `by`, or whose ratio is known up to `within`."""
    found = []
    for column in recipe.columns_of(claim):
        for a, b in _pairs(recipe, claim, column):
            pair = _paired(of(a, column), of(b, column))
            if claim.kind == "ratio":
                pair = {s: (x / y, claim.ratio) for s, (x, y) in pair.items() if y}
                gaps = {s: ratio - claim.ratio for s, (ratio, _) in pair.items()}
                bound, what = claim.within or 0.0, f"{a} / {b} - {claim.ratio:g} in {column}"
            else:
                gaps = {s: x - y for s, (x, y) in pair.items()}
                bound, what = claim.by, f"{a} - {b} in {column}"
            found.append(inside(what, column, gaps, pair, bound))
    return found


def _trends(recipe: Recipe, claim: Claim, of: Lookup) -> list[Comparison]:
    over_columns = recipe.is_along_columns(claim)
    fixed = claim.about if over_columns else recipe.columns_of(claim)
    found = []
    for one in fixed:
        places = [(one, k) if over_columns else (k, one) for k in claim.along]
        if not all(recipe.has_cell(*place) for place in places):
            continue
        at = dict(zip(claim.along, (of(*place) for place in places), strict=True))
        if claim.direction == "flat":
            found += [_step(claim, one, a, b, at) for a, b in combinations(claim.along, 2)]
            continue
        steps = [_step(claim, one, a, b, at) for a, b in pairwise(claim.along)]
        if claim.steps or len(steps) == 1:
            found += steps
            continue
        common = set.intersection(*(set(values) for values in at.values()))
        parts = {s: [values[s] for values in at.values()] for s in common}
        way = 1.0 if claim.direction == "up" else -1.0
        moved = {s: way * _fitted_change(parts[s]) - claim.by for s in common}
        what = f"change of {one} along {claim.along[0]} ... {claim.along[-1]} ({claim.direction})"
        found.append(compared(what, one, moved, parts))
        # Steps have no proof to bring, but may speak against the line.
        found += [replace(step, p_holds=0.0 if step.n > 1 else 1.0) for step in steps]
    return found


def _step(claim: Claim, one: str, a: str, b: str, at: Mapping[str, Seeds]) -> Comparison:
    """The change from one place to another."""
    pair, what = _paired(at[a], at[b]), f"change of {one} from {a} to {b}"
    changes = {s: y - x for s, (x, y) in pair.items()}
    if claim.direction == "flat":
        return inside(what, one, changes, pair, claim.by)
    way, by = (1.0 if claim.direction == "up" else -1.0), claim.by if len(at) == 2 else 0.0
    moved = {s: way * change - by for s, change in changes.items()}
    return compared(f"{what} ({claim.direction})", one, moved, pair)


def _distances(recipe: Recipe, claim: Claim, of: Lookup) -> list[Comparison]:
    within = claim.within or 0.0
    found = []
    for column in recipe.columns_of(claim):
        for row in claim.about:
            paper = recipe.paper_value(row, column)
            if paper is None or not recipe.has_cell(row, column):
                continue
            own = of(row, column)
            gaps, parts = (
                {s: v - paper[0] for s, v in own.items()},
                {s: (v,) for s, v in own.items()},
            )
            what = f"{row} - paper in {column}"
            found.append(inside(what, f"{row}/{column}", gaps, parts, within))
    return found


def _fitted_change(values: Sequence[float]) -> float:
    """Change from the first to the last place on the least-squares line."""
    n = len(values)
    middle = (n - 1) / 2
    slope = math.fsum((k - middle) * v for k, v in enumerate(values))
    return (n - 1) * slope / math.fsum((k - middle) ** 2 for k in range(n))


def _paired(a: Seeds, b: Seeds) -> dict[int, tuple[float, float]]:
    return {seed: (a[seed], b[seed]) for seed in sorted(set(a) & set(b))}


def _interval(claim: Claim, one: Comparison) -> str:
    """What was found with its interval; of `above` and `below` the number itself."""
    mean, ends = one.mean, (one.low, one.high)
    sign = "+"
    if claim.kind in ("above", "below"):
        way, base, sign = (1.0 if claim.kind == "above" else -1.0), claim.value or 0.0, ""
        mean, ends = base + way * mean, (base + way * one.low, base + way * one.high)
    form = f"{sign}.2f" if abs(mean) < 1e6 else f"{sign}.3g"
    return f"{one.what}: {mean:{form}} [{min(ends):{form}}, {max(ends):{form}}], n={one.n}"


def _against(claim: Claim, made: Sequence[Comparison]) -> str:
    """What speaks against a claim that is open."""
    against = [one for one in made if one.p_fails < LEVEL]
    if not against:
        return ""
    worst = min(against, key=lambda one: one.p_fails)
    return f"against it so far: {_interval(claim, worst)}{_more(len(against) - 1)}"


def _more(count: int) -> str:
    return f" and {count} more" if count else ""


def _tuned(recipe: Recipe, claim: Claim) -> str:
    names = dict.fromkeys(r for r, _ in sorted(recipe.places_of(claim)) if recipe.row(r).tune)
    return f"; tuned on validation samples: {', '.join(names)}" if names else ""


def _test_name(claim: Claim, groups: int, known: Sequence[Comparison]) -> str:
    constant = sum(one.constant for one in known)
    if known and constant == len(known):
        return "the same in every seed, no test"
    flat = claim.kind == "trend" and claim.direction == "flat"
    inside = flat or claim.kind in ("near", "within", "ratio")
    paired = "paired " if claim.kind in ("best", "beats", "order", "within", "ratio") else ""
    name = f"two one-sided {paired}t tests" if inside else f"{paired}t test"
    if claim.kind == "trend" and len(claim.along) > 2:
        if flat:
            name += " of any two places"
        else:
            name += " of every step" if claim.steps else " of the fitted change, no step against it"
    holm_over = f", Holm over {groups}" if groups > 1 else ""
    rest = f"; {constant} of {len(known)} are the same in every seed" if constant else ""
    return f"{name} over seeds, 5 %{holm_over}{rest}"
