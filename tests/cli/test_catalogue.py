"""`idiolect list`."""

import json
from dataclasses import fields

import pytest

from idiolect import methods
from tests.cli.calls import call


@pytest.mark.parametrize("kind", ["methods", "datasets", "splits", "models", "recipes"])
def test_list(kind: str) -> None:
    assert call("list", kind).exit_code == 0
    entries = json.loads(call("list", kind, "--json").stdout)
    assert all(entry["name"] for entry in entries) and (entries or kind == "recipes")


def test_methods_are_described() -> None:
    """Each with its paper, what it sends and all its hyperparameters."""
    entries = {one["name"]: one for one in json.loads(call("list", "methods", "--json").stdout)}
    assert entries.keys() == set(methods.REGISTRY)
    for name, one in entries.items():
        kind = methods.REGISTRY[name]
        for key in ("what", "paper", "personal", "traffic"):
            assert isinstance(one[key], str) and one[key], (name, key)
        assert one["year"] > 2015 or name == "local"
        assert one["asynchronous"] is kind.asynchronous
        assert one["rounds_default"] == kind.rounds_default
        known = {f.name: f.default for f in fields(kind)}
        assert {o["name"]: o["default"] for o in one["options"]} == known
        assert all(o["type"] and o["doc"] for o in one["options"]), name
