"""Every method's hyperparameters: numbers have bounds, and what has no effect says so."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import Field, dataclass, fields, replace
from typing import Any, Literal

import pytest

from idiolect import methods
from idiolect.core.fields import default_of, hints, needs_of
from idiolect.core.method import Method, SgdMethod, hyper
from idiolect.errors import UserError
from idiolect.methods.fedavg import FedAvg
from tests.test_every_method import begin, finish, identical, small

METHODS = [*methods.REGISTRY, "spfl_ft"]
UNBOUNDED = {("l2c", "alpha_self")}  # a logit


def choices(kind: type[Method], name: str) -> list[Any]:
    """The types and words of a field, one by one."""
    hint = hints(kind)[name]
    union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    parts = typing.get_args(hint) if union else (hint,)
    return [
        one
        for part in parts
        for one in (typing.get_args(part) if typing.get_origin(part) is Literal else (part,))
    ]


def settings() -> Iterator[tuple[str, Field[Any]]]:
    for name in METHODS:
        yield from ((name, known) for known in fields(methods.REGISTRY[name]))


NUMBERS = [
    pytest.param(name, known, id=f"{name}.{known.name}")
    for name, known in settings()
    if {int, float} & set(choices(methods.REGISTRY[name], known.name))
]


@pytest.mark.parametrize(("name", "known"), NUMBERS)
def test_a_number_out_of_bounds_is_refused(name: str, known: Field[Any]) -> None:
    kind, bounds = methods.REGISTRY[name], known.metadata["bounds"]
    if (name.removesuffix("_ft"), known.name) in UNBOUNDED:
        assert not bounds
        return
    assert {"min", "above"} & set(bounds), f"{name}.{known.name} has no lower bound"
    outside = {"min": -1, "above": 0, "max": 1, "below": 0}
    for bound, limit in bounds.items():
        with pytest.raises(UserError, match=rf"^method\.{known.name} must be [^\n]*$"):
            kind(**{known.name: type(limit)(limit + outside[bound])})


def test_bounds_hold_wherever_a_method_is_built() -> None:
    fedavg = methods.REGISTRY["fedavg"]
    with pytest.raises(UserError, match=r"^method\.lr must be above 0, got -1\.0$"):
        fedavg(lr=-1)  # type: ignore[call-arg]
    with pytest.raises(UserError, match=r"method\.lr"):
        methods.build({"name": "fedavg", "lr": -1})
    with pytest.raises(UserError, match=r"method\.lr"):
        replace(methods.build("fedavg"), lr=-1)  # type: ignore[call-arg]


# --- settings without an effect ---

OFTEN = {"fedavg", "ditto", "fedas", "spfl_ft"}  # what all inherit, of the others: `make heavy`
INHERITED = {known.name: known.metadata for known in fields(SgdMethod)}
NEEDS = [
    pytest.param(
        *(name, known, need),
        id=f"{name}.{known.name}-{need[1]}",
        marks=[pytest.mark.heavy]
        if name not in OFTEN and INHERITED.get(known.name) == known.metadata
        else [],
    )
    for name, known in settings()
    for need in needs_of(known)
]
Need = tuple[str, str, str, list[str]]


@pytest.mark.parametrize(("name", "known", "need"), NEEDS)
def test_needs_name_a_setting_and_its_values(name: str, known: Field[Any], need: Need) -> None:
    only, key, _, words = need
    kind = methods.REGISTRY[name]
    assert key in {f.name for f in fields(kind)}
    possible = choices(kind, key)
    for word in words:
        if {int, float} & set(possible) and word not in possible:
            methods.build({"name": name, key: int(word)})  # it is in bounds
        else:
            assert word in ("true", "false") if possible == [bool] else word in map(str, possible)
    assert not only or only in choices(kind, known.name)


@pytest.mark.parametrize("name", [n for n in METHODS if "epochs" in hints(methods.REGISTRY[n])])
def test_steps_win_over_epochs(name: str) -> None:
    method = methods.build({"name": name, "steps": 3, "epochs": 7})
    assert "method.epochs has no effect unless method.steps is 0" in method.without_effect()
    assert not methods.build({"name": name, "steps": 0, "epochs": 7}).without_effect()


def test_a_setting_declared_again_keeps_what_it_does_not_say() -> None:
    @dataclass(frozen=True)
    class Longer(FedAvg):
        lr: float = hyper(0.5, "a larger step")
        epochs: int = hyper(5)
        drop_last: bool = hyper(True, needs="")

    old, new = ({known.name: known for known in fields(kind)} for kind in (FedAvg, Longer))
    assert new["epochs"].metadata == old["epochs"].metadata
    assert new["lr"].metadata == {**old["lr"].metadata, "doc": "a larger step"}
    assert needs_of(old["drop_last"]) and not needs_of(new["drop_last"])
    with pytest.raises(UserError, match=r"^method\.epochs must be at least 0, got -1$"):
        Longer(epochs=-1)


@pytest.mark.parametrize("name", METHODS)
def test_defaults_are_silent(name: str) -> None:
    assert methods.build(name).without_effect() == []


@pytest.mark.parametrize(("name", "known", "need"), NEEDS)
def test_what_has_no_effect_has_none(name: str, known: Field[Any], need: Need) -> None:
    """Bit for bit: the method as it is, and with the setting changed where its need is not met."""
    without = replace(small(name), **{need[1]: unmet(name, need)})
    changed = next(other_values(without, known, need))
    lines = changed.without_effect()
    assert any(line.startswith(f"method.{known.name}") for line in lines), lines
    (one, _, own), (two, _, own_two) = finish(begin(without)), finish(begin(changed))
    identical(one, two)
    identical(own, own_two)


def unmet(name: str, need: Need) -> Any:
    _, key, sign, words = need
    possible = choices(methods.REGISTRY[name], key)
    if sign == "=" and possible == [int]:
        return 2  # of `steps`
    every = [v for v in possible if v not in (int, float, bool)]
    every += [True, False] if bool in possible else []
    every += [int(w) for w in words if {int, float} & set(possible) and w.isdigit()]
    written = {str(v).lower() if isinstance(v, bool) else str(v): v for v in every}
    return next(v for word, v in written.items() if (word in words) != (sign == "="))


def other_values(method: Method, known: Field[Any], need: Need) -> Iterator[Method]:
    """The method with another value of this setting."""
    now, default = getattr(method, known.name), default_of(known)
    words = [v for v in choices(type(method), known.name) if not isinstance(v, type)]
    if isinstance(default, bool):
        words = [not default]
    if isinstance(default, str) and not words:
        words = ["0.6,0.2,0.2"]
    if isinstance(default, int | float) and not isinstance(default, bool):
        words = [*words, 2 * default + 1, default / 2, 3, 4]
        words += [0.25] if isinstance(default, float) else []
    for value in [need[0]] if need[0] else words:
        if value not in (now, default):
            try:
                yield replace(method, **{known.name: value})
            except UserError:
                continue
