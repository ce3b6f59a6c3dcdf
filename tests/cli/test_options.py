"""Command-line options are made from the settings of a run."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import pytest

from idiolect.cli import options
from idiolect.core.fields import hyper
from idiolect.runs.config import SECTIONS, SETTINGS, RunConfig
from tests.cli.calls import TINY, call


def test_every_setting_with_one_value_has_an_option() -> None:
    shown = call("run", "--help").stdout
    for name in SETTINGS:
        flag = f"--{name.replace('_', '-')}"
        assert (flag in shown) == (name not in ("method", "clock")), name


def test_a_new_setting_needs_one_declaration() -> None:
    """A field of the config is an option with its help, its words and its default."""

    @dataclass(frozen=True)
    class Longer(RunConfig):
        pace: Literal["slow", "fast"] = hyper("slow", "how it goes")

    parameter = options._parameter(Longer, "pace")
    assert parameter.annotation.__metadata__[0].help == "How it goes: slow or fast. Default: slow."
    assert Longer().as_dict()["pace"] == "slow"


def test_flags_become_a_layer_of_settings() -> None:
    given: dict[str, Any] = dict.fromkeys(options.OPTIONS)
    assert options.flags_of(given) == {}
    given |= {"clients": 5, "split": "iid", "data": "mnist", "init": Path("w"), "seed": 0}
    assert options.flags_of(given) == {
        "data": {"name": "mnist"},
        "split": {"name": "iid", "clients": 5},
        "seed": 0,
        "init": Path("w"),
    }


def test_every_setting_is_described() -> None:
    for known in fields(RunConfig):
        assert known.metadata["doc"], known.name
    assert SETTINGS[:4] == SECTIONS


@pytest.mark.filterwarnings("always:.*has no effect")
def test_a_setting_without_effect_is_one_line() -> None:
    words = ["compare", "fedavg", "fedprox", *TINY, "--set", "method.steps=2", "--out", "c"]
    result = call(*words, "--set", "method.epochs=3", "--seeds", "0,1")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("warning: method.epochs has no effect") == 1
