"""Verdicts against numbers worked out by hand."""

import math
from typing import Any

import pytest

from idiolect.papers.comparisons import compared, holm
from idiolect.papers.recipe import Claim
from idiolect.papers.verdicts import Verdict, verdict
from tests.papers.tiny import tiny

ROWS = [{"id": name, "method": "fedavg"} for name in ("a", "b", "c")]
ROWS.append({"id": "x", "method": "fedavg", "extra": True})  # type: ignore[dict-item]
COLUMNS = [{"id": "p"}, {"id": "q"}]
PAPER = {"a": {"p": 80, "q": 80}}


def decide(values: dict[tuple[str, str], list[float]], **claim: Any) -> Verdict:
    made = tiny(rows=ROWS, columns=COLUMNS, paper_values=PAPER, claims=[], quick={})
    by_seed = {(r, c, "protocol"): dict(enumerate(v)) for (r, c), v in values.items()}
    return verdict(made, Claim(id="x", says="s", **claim), by_seed)


def test_a_t_test_by_hand() -> None:
    """1, 2, 3: mean 2, standard error 1/sqrt(3), t = 3.4641 with two degrees of freedom."""
    one = compared("", "", {0: 1.0, 1: 2.0, 2: 3.0})
    assert one.mean == 2
    assert one.p_holds == pytest.approx((1 - math.sqrt(12 / 14)) / 2)  # closed form for two
    half = 2.9199856 / math.sqrt(3)
    assert (one.low, one.high) == (pytest.approx(2 - half), pytest.approx(2 + half))
    assert one.p_holds + one.p_fails == pytest.approx(1)


def test_holm_by_hand() -> None:
    """.005 <= .05/4, .01 <= .05/3, but .03 > .05/2: the rest stays."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == [True, False, False, True]
    assert holm([0.01, 0.02, 0.03, 0.05]) == [True, False, False, False]
    assert holm([]) == []


def test_one_seed_is_never_enough() -> None:
    told = decide({("a", "p"): [90.0], ("b", "p"): [10.0]}, kind="beats", row="a", over="b",
                  columns=("p",))  # fmt: skip
    assert told.answer == "not enough evidence" and told.comparisons[0].n == 1


def test_beats() -> None:
    values = {("a", "p"): [81.0, 82.5, 83.0], ("b", "p"): [80.0, 81.4, 82.1]}
    how: dict[str, Any] = {"kind": "beats", "row": "a", "over": "b", "columns": ("p",)}
    assert decide(values, **how).answer == "holds"  # 1, 1.1, .9
    assert decide(values, **how, by=1.05).answer == "not enough evidence"
    assert decide(values, **how, by=2.0).answer == "does not hold"
    swapped = {("a", "p"): values["b", "p"], ("b", "p"): values["a", "p"]}
    assert decide(swapped, **how).answer == "does not hold"
    assert decide(swapped, **how, lower=True).answer == "holds"


def test_only_common_seeds_are_paired() -> None:
    made = tiny(rows=ROWS, columns=COLUMNS, paper_values={}, claims=[], quick={})
    values = {("a", "p", "protocol"): {0: 5.0, 1: 6.0, 7: 90.0},
              ("b", "p", "protocol"): {0: 4.0, 1: 5.1, 3: 99.0}}  # fmt: skip
    claim = Claim(id="x", says="s", kind="beats", row="a", over="b", columns=("p",))
    assert verdict(made, claim, values).comparisons[0].seeds == (0, 1)


def test_best_in_every_column() -> None:
    """All rivals in all columns; rows that are not in the paper are no rivals."""
    good = {("a", c): [90.0, 91.0, 92.0] for c in "pq"}
    good |= {(r, c): [80.0, 81.1, 81.9] for r in "bc" for c in "pq"}
    good |= {("x", c): [99.0, 99.0, 99.0] for c in "pq"}
    told = decide(good, kind="best", row="a")
    assert told.answer == "holds" and len(told.comparisons) == 4
    assert "paired t test" in told.test and "Holm over 2" in told.test
    partly = {key: v for key, v in good.items() if key != ("c", "q")}
    told = decide(partly, kind="best", row="a")
    assert told.answer == "not enough evidence" and "1 of 2" in told.reason
    beaten = partly | {("b", "q"): [95.0, 96.1, 97.0]}
    assert decide(beaten, kind="best", row="a").answer == "does not hold"
    assert decide(beaten, kind="best", row="a", among=("c",), columns=("p",)).answer == "holds"


def test_holm_over_columns_is_stricter_than_one_column() -> None:
    """Differences 1, 2, 3 have p = .037: enough for one column, not for two."""
    values = {("a", c): [1.0, 2.0, 3.0] for c in "pq"} | {("b", c): [0.0] * 3 for c in "pq"}
    how: dict[str, Any] = {"kind": "beats", "row": "a", "over": "b"}
    assert decide(values, **how, columns=("p",)).answer == "holds"
    assert decide(values, **how).answer == "not enough evidence"


def test_order() -> None:
    values = {("a", "p"): [9.0, 9.5], ("b", "p"): [5.0, 5.5], ("c", "p"): [1.0, 1.5]}
    how: dict[str, Any] = {"kind": "order", "columns": ("p",)}
    assert decide(values, **how, rows=("a", "b", "c")).answer == "holds"
    assert decide(values, **how, rows=("b", "a", "c")).answer == "does not hold"


def test_trend_is_the_change_on_the_fitted_line() -> None:
    columns = [{"id": f"k{k}"} for k in range(4)]
    made = tiny(rows=ROWS, columns=columns, paper_values={}, claims=[], quick={})
    series = {0: [0.0, 2.0, 1.0, 3.0], 1: [0.1, 2.0, 1.2, 3.3], 2: [0.0, 2.1, 1.1, 3.1]}
    values = {("a", f"k{k}", "protocol"): {s: v[k] for s, v in series.items()} for k in range(4)}
    along = tuple(f"k{k}" for k in range(4))
    claim: dict[str, Any] = {"id": "x", "says": "s", "kind": "trend", "row": "a", "along": along}
    told = verdict(made, Claim(**claim, direction="up"), values)
    # slopes (3*(3-0) + (1-2)) / 10 = .8, (3*3.2 - .8) / 10 = .88 and .83; times three steps
    assert told.comparisons[0].mean == pytest.approx((2.4 + 2.64 + 2.49) / 3)
    # up, but for the step from the second place to the third
    assert told.answer == "does not hold" and "from k1 to k2" in told.reason
    assert verdict(made, Claim(**claim, direction="down"), values).answer == "does not hold"
    assert verdict(made, Claim(**claim, direction="flat", by=9.0), values).answer == "holds"
    assert verdict(made, Claim(**claim, direction="up", by=4), values).answer == "does not hold"


def along(places: list[list[float]], **how: Any) -> Verdict:
    """The verdict on a trend of one row, from the seeds' values at every place."""
    names = tuple(f"k{k}" for k in range(len(places)))
    columns = [{"id": name} for name in names]
    made = tiny(rows=ROWS, columns=columns, paper_values={}, claims=[], quick={})
    values = {
        ("a", name, "protocol"): dict(enumerate(seeds))
        for name, seeds in zip(names, places, strict=True)
    }
    return verdict(made, Claim(id="x", says="s", kind="trend", row="a", along=names, **how), values)


@pytest.mark.parametrize(
    ("places", "flat"),
    [
        ([80, 80.2, 79.9], "holds"),
        ([70, 40, 70], "does not hold"),  # the line through them is flat
        ([91, 80, 80, 91], "does not hold"),
        ([80, 81.3, 81.3, 81.3, 81.3, 81.3], "does not hold"),
        ([80, 80.98, 80.2], "not enough evidence"),
    ],
)
def test_flat_is_about_any_two_places(places: list[float], flat: str) -> None:
    noise = ([0.0, 0.03, -0.03, 0.01], [0.02, -0.03, 0.0, 0.01])
    seeds = [[at + e for e in noise[k % 2]] for k, at in enumerate(places)]
    assert along(seeds, direction="flat", by=1).answer == flat


def test_no_step_may_speak_against_a_line() -> None:
    noise = ([0.0, 0.3, -0.3, 0.1], [0.2, -0.3, 0.0, 0.1])

    def told(*places: float, **how: Any) -> str:
        seeds = [[at + e for e in noise[k % 2]] for k, at in enumerate(places)]
        return along(seeds, direction="down", **how).answer

    assert told(97, 96.8, 60) == told(97, 80, 60) == told(97, 80, 60, steps=True) == "holds"
    assert told(97, 96.8, 60, steps=True) == "not enough evidence"
    assert told(97, 5, 50) == told(97, 5, 50, steps=True) == "does not hold"
    assert told(97, 98, 50) == "does not hold"


def test_numbers_that_happen_to_differ_alike_are_not_certain() -> None:
    """Accuracies are counts: two seeds can give the same difference by chance."""
    how: dict[str, Any] = {"kind": "beats", "row": "a", "over": "b", "columns": ("p",)}
    chance = {("a", "p"): [90.01, 88.01], ("b", "p"): [90.0, 88.0]}
    assert decide(chance, **how).answer == "not enough evidence"
    clear = {("a", "p"): [95.0, 93.0], ("b", "p"): [90.0, 88.0]}
    assert decide(clear, **how).answer == "holds"
    equal = {("a", "p"): [90.0, 88.0], ("b", "p"): [90.0, 88.0]}
    assert decide(equal, **how).answer == "not enough evidence"
    assert decide(equal, **how | {"kind": "within", "by": 0.5}).answer == "holds"
    on_the_bound = {("a", "p"): [2.0, 2.0], ("b", "p"): [1.0, 1.0]}
    assert decide(on_the_bound, **how | {"kind": "within", "by": 1.0}).answer == "holds"


def test_holm_counts_the_comparisons_that_are_still_missing() -> None:
    """Otherwise a claim about many could fall by the first that are there."""
    few = {("a", "p"): [80.0, 80.6, 79.5], ("b", "p"): [80.8, 81.1, 80.8]}
    how: dict[str, Any] = {"kind": "best", "row": "a", "columns": ("p",)}
    told = decide(few, **how)
    (known,) = [one for one in told.comparisons if one.n]
    assert 0.05 / 2 < known.p_fails < 0.05 and told.answer == "not enough evidence"
    assert decide(few, **how, among=("a", "b")).answer == "does not hold"


def test_a_seed_that_diverged_is_not_left_out() -> None:
    made = tiny(rows=ROWS, columns=COLUMNS, paper_values=PAPER, claims=[], quick={})
    values = {("a", "p", "protocol"): {0: 9.0, 1: 9.1}, ("b", "p", "protocol"): {0: 5.0, 1: 5.2}}
    claim = Claim(id="x", says="s", kind="beats", row="a", over="b", columns=("p",))
    assert verdict(made, claim, values).answer == "holds"
    told = verdict(made, claim, values, diverged={("a", "p"): {2}})
    assert told.answer == "not enough evidence" and "a in p diverged in seed 2" in told.reason
    assert verdict(made, claim, values, diverged={("c", "p"): {2}}).answer == "holds"


def test_near_needs_the_whole_interval() -> None:
    how: dict[str, Any] = {"kind": "near", "row": "a", "within": 1.0, "columns": ("p",)}
    assert decide({("a", "p"): [80.1, 80.0, 79.9]}, **how).answer == "holds"
    assert decide({("a", "p"): [79.0, 80.0, 81.5]}, **how).answer == "not enough evidence"
    assert decide({("a", "p"): [85.0, 85.1, 85.2]}, **how).answer == "does not hold"


def test_above_below_within_and_ratio() -> None:
    values = {("a", "p"): [2.0, 2.02, 1.98], ("b", "p"): [1.0, 1.01, 0.99]}
    only: dict[str, Any] = {"columns": ("p",)}
    assert decide(values, kind="above", row="a", value=1.5, **only).answer == "holds"
    assert decide(values, kind="below", row="a", value=1.5, **only).answer == "does not hold"
    how: dict[str, Any] = {"row": "a", "over": "b", **only}
    assert decide(values, kind="within", by=1.5, **how).answer == "holds"
    assert decide(values, kind="within", by=0.5, **how).answer == "does not hold"
    assert decide(values, kind="ratio", ratio=2.0, within=0.1, **how).answer == "holds"
    assert decide(values, kind="ratio", ratio=3.0, within=0.1, **how).answer == "does not hold"


def test_numbers_without_chance_decide_by_themselves() -> None:
    """Bytes are the same in every seed."""
    values = {("a", "p"): [2.0, 2.0], ("b", "p"): [1.0, 1.0], ("c", "p"): [2.0, 2.0]}
    how: dict[str, Any] = {"kind": "beats", "row": "a", "columns": ("p",)}
    assert decide(values, **how, over="b").answer == "holds"
    assert decide(values, **how, over="c").answer == "not enough evidence"  # a tie
    large = {("a", "p"): [4e12, 4e12], ("b", "p"): [2e12, 2e12]}
    ratio: dict[str, Any] = how | {"kind": "ratio", "over": "b", "within": 0.1}
    assert decide(large, **ratio, ratio=2.05).answer == "holds"
    assert decide(large, **ratio, ratio=2.2).answer == "does not hold"


def test_what_a_claim_needs() -> None:
    made = tiny(rows=ROWS, columns=COLUMNS, paper_values=PAPER, claims=[], quick={})
    best = Claim(id="x", says="s", kind="best", row="a", columns=("p",))
    assert made.places_of(best) == {("a", "p"), ("b", "p"), ("c", "p")}
    trend = Claim(id="x", says="s", kind="trend", row="b", along=("p", "q"))
    assert made.places_of(trend) == {("b", "p"), ("b", "q")}


def test_quick_verdicts_say_so() -> None:
    made = tiny()
    told = verdict(made, made.claims[0], {}, quick=True)
    assert told.line.startswith("QUICK")


def test_an_open_claim_names_what_speaks_against_it() -> None:
    """One rival is above the winner, the others were not run."""
    values = {("a", "p"): [80.0, 81.0, 82.0], ("b", "p"): [81.0, 83.5, 83.6]}
    how: dict[str, Any] = {"kind": "best", "row": "a", "columns": ("p", "q")}
    told = decide(values, **how)
    assert told.answer == "not enough evidence"
    assert "against it so far: a - b in p: -1.70" in told.reason
    # All rows are there, and Holm's correction alone keeps the verdict open.
    values |= {(r, "q"): [70.0 - k, 71.0 - k, 72.3 - k] for k, r in enumerate("abc")}
    values |= {("c", "p"): [70.0, 70.5, 70.1], ("b", "p"): [80.3, 81.6, 82.3]}
    told = decide(values, **how)
    assert (
        told.answer == "not enough evidence"
        and "against it so far: a - b in p: -0.40" in told.reason
    )


def test_a_bound_is_told_with_the_number_itself() -> None:
    values = {("a", "p"): [60.0, 61.0, 60.5]}
    told = decide(values, kind="above", row="a", value=20.0, columns=("p",))
    assert "a above 20 in p: 60.50 [" in told.reason
    told = decide(values, kind="below", row="a", value=20.0, columns=("p",))
    assert told.answer == "does not hold" and "a below 20 in p: 60.50 [" in told.reason
    low, high = told.reason.partition("[")[2].partition("]")[0].split(", ")
    assert float(low) < 60.5 < float(high)


def test_no_test_is_named_where_there_was_none() -> None:
    values = {("a", "p"): [3.0, 3.0], ("b", "p"): [2.0, 2.0], ("c", "p"): [1.0, 1.2]}
    assert "no test" in decide(values, kind="beats", row="a", over="b", columns=("p",)).test
    told = decide(values, kind="beats", row="a", over=("b", "c"), columns=("p",))
    assert "t test" in told.test and "1 of 2 are the same in every seed" in told.test
