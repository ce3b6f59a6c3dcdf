"""From a recipe to the settings of its runs, and when a recorded run is one of them."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from idiolect.errors import UserError
from idiolect.papers.cells import (
    cells,
    check_only,
    nested,
    same_settings,
    settings_digest,
    with_cells_of_the_same_runs,
)
from idiolect.runs.execute import execute
from tests.papers.tiny import tiny


def test_layers_go_over_one_another() -> None:
    """Base, column, row, single cells; a hyperparameter goes to the methods that have it."""
    single = [{"row": "prox", "column": "even", "set": {"method.mu": 0.7, "rounds": 5}}]
    made = {(c.row, c.column, c.seed): c.config for c in cells(tiny(cells=single))}
    assert made["fedavg", "skewed", 0]["split"]["alpha"] == 0.5
    assert made["fedavg", "even", 1]["split"] | {"alpha": 0} == made["local", "even", 1][
        "split"
    ] | {"alpha": 0}
    assert made["fedavg", "even", 0]["method"]["lr"] == 0.05
    assert made["local", "even", 0]["method"]["lr"] == 0.01
    assert "mu" not in made["fedavg", "even", 0]["method"]
    assert (made["prox", "even", 1]["method"]["mu"], made["prox", "even", 1]["rounds"]) == (0.7, 5)
    assert len(made) == 10


def test_quick_shrinks() -> None:
    made = cells(tiny(), quick=True)
    assert {c.column for c in made} == {"even"} and {c.config["rounds"] for c in made} == {1}
    assert {tuple(c.config["data"]["sample"]) for c in made} == {(400, 0)}


@pytest.mark.parametrize(
    ("only", "places"),
    [
        (["fedavg"], {("fedavg", "skewed"), ("fedavg", "even")}),
        (["skew*"], {("fedavg", "skewed"), ("local", "skewed")}),
        (["local/even", "prox"], {("local", "even"), ("prox", "even")}),
    ],
)
def test_only(only: list[str], places: set[tuple[str, str]]) -> None:
    assert {(c.row, c.column) for c in cells(tiny(), only=only)} == places


def test_only_nothing_is_an_error() -> None:
    with pytest.raises(UserError, match="did you mean 'fedavg'"):
        check_only([tiny()], ["fedavgg"])


def test_a_name_need_be_known_to_one_of_several_recipes_only() -> None:
    other = replace(tiny(), rows=tiny().rows[:1])
    last = tiny().rows[-1].id
    check_only([other, tiny()], [last])
    assert cells(other, only=[last]) == []
    with pytest.raises(UserError, match=last):
        check_only([other], [last])


def test_cells_of_the_same_runs_come_along() -> None:
    """A second column with the same settings and another number."""
    columns = [
        {"id": "even", "set": {"split.alpha": 50}},
        {"id": "worst", "set": {"split.alpha": 50}, "metric": "worst"},
        {"id": "skewed", "set": {"split.alpha": 0.5}},
    ]
    recipe = tiny(columns=columns, paper_values={}, claims=[], quick={})
    wanted = cells(recipe, only=["fedavg/even"])
    found = with_cells_of_the_same_runs(wanted, cells(recipe))
    assert {(c.row, c.column) for c in found} == {("fedavg", "even"), ("fedavg", "worst")}


def test_a_wrong_setting_breaks_its_cells_only() -> None:
    rows = [{"id": "good", "method": "fedavg"}, {"id": "bad", "method": "fedavg",
            "set": {"method.lrr": 1}}]  # fmt: skip
    made = cells(tiny(rows=rows, paper_values={}, claims=[]))
    assert {c.row for c in made if c.broken} == {"bad"}
    assert "did you mean 'lr'" in next(c.broken for c in made if c.broken)


def test_a_shared_setting_no_method_has_is_an_error() -> None:
    base = {"data": "digits", "method": {"learning_rate": 1}}
    assert all("learning_rate" in c.broken for c in cells(tiny(base=base)))


def change(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    made = deepcopy(config)
    *sections, key = path.split(".")
    section = made
    for name in sections:
        section = section[name]
    section[key] = value
    return made


def test_a_recorded_run_is_the_planned_one() -> None:
    planned = cells(tiny())[0].config
    assert same_settings(planned, planned)
    for path, value in {"device": "cuda", "dtype": "tf32", "keep": "disk",
                        "checkpoint_every": 99}.items():  # fmt: skip
        assert same_settings(change(planned, path, value), planned)
        assert settings_digest(change(planned, path, value)) == settings_digest(planned)
    for path, value in {"seed": 7, "method.lr": 0.2, "rounds": 4, "split.clients": 5}.items():
        assert not same_settings(change(planned, path, value), planned)


def test_where_the_last_test_decides_more_tests_will_do() -> None:
    planned = change(cells(tiny())[0].config, "eval_every", 6)
    for protocol, every, same in [
        ("plga", 1, True),
        ("spfl", 3, True),
        ("plga", 4, False),
        ("plga", 12, False),
        ("plga", 0, False),
        ("plga", "1", False),
        ("fedas", 1, False),  # its best round would be one of others
    ]:
        plan = change(planned, "protocol", protocol)
        assert same_settings(change(plan, "eval_every", every), plan) == same
    measured = change(change(planned, "protocol", "plga"), "measure", {"train": True})
    assert not same_settings(change(measured, "eval_every", 1), measured)


@pytest.mark.parametrize("method", ["fedavg_async", "per_fedavg_async", "fedasync", "lga", "plga"])
def test_numbers_of_the_last_round_do_not_depend_on_earlier_tests(
    method: str, tmp_path: Path
) -> None:
    base = {"data": "digits", "protocol": "plga", "stragglers": {"count": 2, "cycle": "code"}}
    base |= {"split": {"name": "classes", "clients": 4, "k": 5}, "method": {"steps": 2}}
    rows = [{"id": "a", "method": method}]
    found = []
    for every in (1, 5):
        plan = base | {"rounds": 10, "eval_every": every}
        whole = {"columns": [{"id": "all"}], "paper_values": {}, "claims": [], "quick": {}}
        config = cells(tiny(base=plan, rows=rows, **whole))[0].config
        summary = execute(config, tmp_path / str(every))
        found.append(summary["protocol"])
    assert found[0]["value"] > 0 and found[0] == found[1]


def test_settings_added_since_count_as_their_default() -> None:
    planned = cells(tiny())[0].config
    old = deepcopy(planned)
    del old["method"]["order"], old["split"]["min_size"]
    assert same_settings(old, planned)
    assert not same_settings(old, change(planned, "method.order", "class"))


def test_a_switch_removed_since_must_have_been_off() -> None:
    planned = cells(tiny())[0].config
    assert same_settings(change(planned, "method.gone", False), planned)
    assert not same_settings(change(planned, "method.gone", True), planned)


def test_dotted_and_nested_keys_mean_the_same() -> None:
    assert nested({"split.alpha": 1, "split": {"clients": 2}, "data": "digits"}) == {
        "split": {"alpha": 1, "clients": 2},
        "data": "digits",
    }
