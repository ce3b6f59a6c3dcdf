"""Whether a claim of a paper holds, by paired differences over seeds.

Every claim is a set of comparisons. A comparison has one value per seed, and the claim says that
its mean is above zero: A - B for `beats`, `best` and `order` (same seed, same split and start), the
change along a fitted line for `trend`, the distance to a constant otherwise. It is tested by a
one-sided t test over seeds at 5 % (the interval shown is the two-sided 90 % one). `near`, `within`,
`ratio` and `flat` say that a mean lies between two bounds: both one-sided tests (TOST).

*Holds*: all comparisons of each column are significant, the columns by Holm's correction; within a
column all must be, so there the largest p counts and needs no correction. *Does not hold*: at least
one comparison is significantly the other way round, by Holm's correction over all of them.
Otherwise, and with fewer than two seeds in a comparison, there is *not enough evidence*.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from idiolect.papers.recipe import Claim, Recipe

LEVEL = 0.05
Seeds = Mapping[int, float]
Values = Mapping[tuple[str, str, str], Seeds]  # row, column, metric -> seed -> value
Lookup = Callable[[str, str], Seeds]  # row, column
Answer = Literal["holds", "does not hold", "not enough evidence"]


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

    @property
    def n(self) -> int:
        return len(self.seeds)


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


def judge(recipe: Recipe, values: Values, quick: bool = False) -> list[Verdict]:
    """A verdict on every claim of a recipe; `quick`: on the cells of --quick."""
    recipe = recipe.shrunk() if quick else recipe
    return [verdict(recipe, claim, values, quick) for claim in recipe.claims]


def verdict(recipe: Recipe, claim: Claim, values: Values, quick: bool = False) -> Verdict:
    made = _comparisons(recipe, claim, values)
    groups: dict[str, list[Comparison]] = {}
    for one in made:
        groups.setdefault(one.group, []).append(one)
    known = [one for one in made if one.n >= 2]
    against = holm([one.p_fails for one in known])
    test = _test_name(claim, len(groups)) + _tuned(recipe, claim)
    reversed_ = [one for one, sure in zip(known, against, strict=True) if sure]
    if reversed_:
        worst = min(reversed_, key=lambda one: one.p_fails)
        reason = f"{_interval(worst)}{_more(len(reversed_) - 1)}"
        return Verdict(claim, "does not hold", reason, test, tuple(made), quick)
    if not made or len(known) < len(made):
        whole = [group for group in groups.values() if all(one.n >= 2 for one in group)]
        sure = holm([max(one.p_holds for one in group) for group in whole])
        reason = f"{len(whole)} of {len(groups)} have two seeds or more"
        reason += f", it holds in {sum(sure)} of these" if whole else ""
        return Verdict(claim, "not enough evidence", reason, test, tuple(made), quick)
    weakest = max(known, key=lambda one: one.p_holds)
    sure = holm([max(one.p_holds for one in group) for group in groups.values()])
    answer: Answer = "holds" if all(sure) else "not enough evidence"
    prefix = "weakest: " if len(known) > 1 else ""
    return Verdict(claim, answer, prefix + _interval(weakest), test, tuple(made), quick)


def needed(recipe: Recipe, claim: Claim) -> set[tuple[str, str]]:
    """The (row, column) pairs whose numbers a claim rests on."""
    columns = claim.columns or tuple(column.id for column in recipe.columns)
    if claim.kind == "trend" and set(claim.along) <= {c.id for c in recipe.columns}:
        columns = claim.along
    rows: Iterable[str] = (*claim.about, *claim.beaten, *claim.rows, *claim.among)
    if claim.kind == "best" and not claim.among:
        rows = [*claim.about, *(row.id for row in recipe.rows if not row.extra)]
    if not claim.columns and claim.kind != "trend":
        columns = _columns(recipe, claim)
    if claim.kind == "trend" and not claim.about:
        rows = claim.along
    return {(row, column) for row in rows for column in columns if recipe.has_cell(row, column)}


def holm(p_values: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Which hypotheses are rejected when all are tested together (Holm's step-down rule)."""
    order = sorted(range(len(p_values)), key=lambda k: p_values[k])
    rejected = [False] * len(p_values)
    for step, k in enumerate(order):
        if p_values[k] > level / (len(p_values) - step):
            break
        rejected[k] = True
    return rejected


def compared(what: str, group: str, values: Seeds, level: float = LEVEL) -> Comparison:
    """One mean over seeds against zero: t test, interval, both directions."""
    seeds = tuple(sorted(values))
    n = len(seeds)
    if n == 0:
        return Comparison(what, group, (), math.nan, math.nan, math.nan, 1.0, 1.0)
    mean = math.fsum(values.values()) / n
    if n == 1:
        return Comparison(what, group, seeds, mean, -math.inf, math.inf, 1.0, 1.0)
    from scipy.stats import t

    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values.values()) / (n - 1))
    if spread < 1e-9 * max(1.0, abs(mean)):  # the same in every seed: nothing is left to chance
        above = mean > 0
        return Comparison(what, group, seeds, mean, mean, mean, 1.0 - above, float(above))
    error = spread / math.sqrt(n)
    half = float(t.ppf(1 - level, n - 1)) * error
    p = float(t.sf(mean / error, n - 1))
    return Comparison(what, group, seeds, mean, mean - half, mean + half, p, 1 - p)


def _columns(recipe: Recipe, claim: Claim) -> tuple[str, ...]:
    """The columns a claim is about: those it names, else all of the paper."""
    return claim.columns or tuple(column.id for column in recipe.columns if not column.extra)


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
    made: list[tuple[str, str, Seeds]] = []
    sign = -1.0 if claim.lower else 1.0
    for column in _columns(recipe, claim):
        for better, worse in _pairs(recipe, claim, column):
            pair = _paired(of(better, column), of(worse, column))
            gaps = {seed: sign * (a - b) - claim.by for seed, (a, b) in pair.items()}
            what = f"{better} - {worse}" if sign > 0 else f"{worse} - {better}"
            made.append((what, column, gaps))
        if claim.kind in ("above", "below"):
            way = 1.0 if claim.kind == "above" else -1.0
            for row in (r for r in claim.about if recipe.has_cell(r, column)):
                gaps = {s: way * (v - (claim.value or 0.0)) for s, v in of(row, column).items()}
                made.append((f"{row} {claim.kind} {claim.value:g}", column, gaps))
    margin = f" - {claim.by:g}" if claim.by and claim.kind == "beats" else ""
    if claim.average:
        return _averaged(made, margin)
    return [compared(f"{what}{margin} in {column}", column, gaps) for what, column, gaps in made]


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
    for column in _columns(recipe, claim):
        for a, b in _pairs(recipe, claim, column):
            pair = _paired(of(a, column), of(b, column))
            if claim.kind == "ratio":
                gaps = {s: x / y - claim.ratio for s, (x, y) in pair.items() if y}
                bound, what = claim.within or 0.0, f"{a} / {b} - {claim.ratio:g} in {column}"
            else:
                gaps = {s: x - y for s, (x, y) in pair.items()}
                bound, what = claim.by, f"{a} - {b} in {column}"
            found.append(_inside(what, column, gaps, -bound, bound))
    return found


def _averaged(made: Sequence[tuple[str, str, Seeds]], margin: str) -> list[Comparison]:
    whats = dict.fromkeys(what for what, _, _ in made)
    found = []
    for what in whats:
        parts = [gaps for name, _, gaps in made if name == what]
        common = set.intersection(*(set(gaps) for gaps in parts))
        means = {s: math.fsum(gaps[s] for gaps in parts) / len(parts) for s in common}
        found.append(compared(f"{what}{margin}, mean of {len(parts)} columns", what, means))
    return found


def _trends(recipe: Recipe, claim: Claim, of: Lookup) -> list[Comparison]:
    over_columns = set(claim.along) <= {column.id for column in recipe.columns}
    fixed = claim.about if over_columns else _columns(recipe, claim)
    found = []
    for one in fixed:
        places = [(one, k) if over_columns else (k, one) for k in claim.along]
        if not all(recipe.has_cell(*place) for place in places):
            continue
        steps = [of(*place) for place in places]
        common = set.intersection(*(set(step) for step in steps))
        changes = {s: _fitted_change([step[s] for step in steps]) for s in common}
        what = f"change of {one} from {claim.along[0]} to {claim.along[-1]}"
        if claim.direction == "flat":
            found.append(_inside(what, one, changes, -claim.by, claim.by))
        else:
            way = 1.0 if claim.direction == "up" else -1.0
            moved = {s: way * change - claim.by for s, change in changes.items()}
            found.append(compared(f"{what} ({claim.direction})", one, moved))
    return found


def _distances(recipe: Recipe, claim: Claim, of: Lookup) -> list[Comparison]:
    within = claim.within or 0.0
    found = []
    for column in _columns(recipe, claim):
        for row in claim.about:
            paper = recipe.paper_value(row, column)
            if paper is None or not recipe.has_cell(row, column):
                continue
            gaps = {seed: value - paper[0] for seed, value in of(row, column).items()}
            what = f"{row} - paper in {column}"
            found.append(_inside(what, f"{row}/{column}", gaps, -within, within))
    return found


def _inside(what: str, group: str, values: Seeds, low: float, high: float) -> Comparison:
    """A mean between two bounds: both one-sided tests (TOST)."""
    plain = compared(what, group, values)
    above = compared(what, group, {s: v - low for s, v in values.items()})
    below = compared(what, group, {s: high - v for s, v in values.items()})
    p_holds = max(above.p_holds, below.p_holds)
    p_fails = min(1.0, 2 * min(above.p_fails, below.p_fails))
    return Comparison(what, group, plain.seeds, plain.mean, plain.low, plain.high, p_holds, p_fails)


def _fitted_change(values: Sequence[float]) -> float:
    """Change from the first to the last place on the least-squares line."""
    n = len(values)
    middle = (n - 1) / 2
    slope = math.fsum((k - middle) * v for k, v in enumerate(values))
    return (n - 1) * slope / math.fsum((k - middle) ** 2 for k in range(n))


def _paired(a: Seeds, b: Seeds) -> dict[int, tuple[float, float]]:
    return {seed: (a[seed], b[seed]) for seed in sorted(set(a) & set(b))}


def _interval(one: Comparison) -> str:
    form = "+.2f" if abs(one.mean) < 1e6 else "+.3g"
    return f"{one.what}: {one.mean:{form}} [{one.low:{form}}, {one.high:{form}}], n={one.n}"


def _more(count: int) -> str:
    return f" and {count} more" if count else ""


def _tuned(recipe: Recipe, claim: Claim) -> str:
    names = dict.fromkeys(r for r, _ in sorted(needed(recipe, claim)) if recipe.row(r).tune)
    return f"; tuned on validation samples: {', '.join(names)}" if names else ""


def _test_name(claim: Claim, groups: int) -> str:
    flat = claim.kind == "trend" and claim.direction == "flat"
    inside = flat or claim.kind in ("near", "within", "ratio")
    paired = "paired " if claim.kind in ("best", "beats", "order", "within", "ratio") else ""
    name = f"two one-sided {paired}t tests" if inside else f"{paired}t test"
    if claim.kind == "trend":
        name += " of the fitted change"
    return f"{name} over seeds, 5 %" + (f", Holm over {groups}" if groups > 1 else "")
