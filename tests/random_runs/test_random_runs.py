"""Runs drawn by lot give the same numbers whatever should not change them."""

from __future__ import annotations

import warnings

import pytest

from tests.random_runs.checks import CHECKS, run
from tests.random_runs.draws import METHODS, drawn

FEW, MANY = 14, 40  # runs in the ordinary suite, with one check each; in `make heavy`, with all


def check(number: int, names: list[str]) -> None:
    one = drawn(number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # settings without effect
        usual = run(one)
        found = {name: CHECKS[name](one, usual)[:5] for name in names}
    assert not any(found.values()), f"{one.told}\n{found}"


@pytest.mark.parametrize("number", range(FEW))
def test_a_few_runs(number: int) -> None:
    check(number, [list(CHECKS)[number % len(CHECKS)]])


@pytest.mark.heavy
@pytest.mark.parametrize("number", range(MANY))
def test_many_runs(number: int) -> None:
    check(number, list(CHECKS))


def test_a_run_is_its_number() -> None:
    told = [drawn(number).told for number in range(4)]
    assert told == [drawn(number).told for number in range(4)]
    assert len(set(told)) == 4
    assert [drawn(number, ["apfl"]).method.name for number in range(4)] == ["apfl"] * 4
    assert len({drawn(number).method.name for number in range(FEW)}) > len(METHODS) / 4
