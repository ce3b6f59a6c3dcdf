"""Declaring a class registers it; two of a name are an error."""

from copy import copy
from dataclasses import dataclass

import numpy as np
import pytest

from idiolect import models
from idiolect.core.fields import hyper
from idiolect.data import build, list_splits
from idiolect.data.datasets.base import Dataset
from idiolect.data.splits.base import Divided, Split, numbered
from idiolect.errors import UserError
from idiolect.models.blocks import Network, Shape, on_convs
from idiolect.models.networks import Model


@pytest.fixture(autouse=True)
def registries(monkeypatch):
    """What a test declares is forgotten after it."""
    for kind in (Dataset, Split, Model):
        monkeypatch.setattr(kind, "registry", copy(kind.registry))


def test_a_split_is_one_declaration():
    @dataclass(frozen=True)
    class Halves(Split):
        """Each client gets every n-th sample, the first `head` of them for training."""

        head: int = hyper(5, "training samples of every client", min=1)

        name = "halves"

        def divide(self, pool, seed) -> Divided:
            rows = [np.arange(i, len(pool), self.n) for i in range(self.n)]
            return numbered([r[: self.head] for r in rows], [r[self.head :] for r in rows])

    fed = build({"name": "digits"}, {"name": "halves", "clients": 3}, 0)
    assert fed.sizes("train").tolist() == [5, 5, 5]
    assert fed.info["split"]["head"] == 5
    assert "halves" in [one["name"] for one in list_splits()]
    with pytest.raises(UserError, match=r"split\.head must be at least 1, got 0"):
        build({"name": "digits"}, {"name": "halves", "head": 0}, 0)


def test_a_model_is_one_declaration():
    @dataclass(frozen=True)
    class Narrow(Model):
        """One hidden layer."""

        hidden: int = hyper(3, "units of the hidden layer", min=1)

        name = "narrow"

        def network(self, shape: Shape, classes: int) -> Network:
            return on_convs([], shape, classes, self.hidden)

    assert models.build({"name": "narrow"}, (4,), 2).head.in_features == 3
    assert models.resolved({"name": "narrow"}, (4,)) == {"name": "narrow", "hidden": 3}
    with pytest.raises(UserError, match="did you mean 'narrow'"):
        models.build({"name": "narow"}, (4,), 2)


@pytest.mark.parametrize(("kind", "name"), [(Dataset, "mnist"), (Split, "iid"), (Model, "mlp")])
def test_two_of_a_name_are_an_error(kind, name):
    with pytest.raises(TypeError, match=f"'{name}' is declared twice, by idiolect.* and tests"):
        type("Second", (kind,), {"name": name, "__module__": __name__})
    assert kind.registry[name].__module__.startswith("idiolect")


@pytest.mark.parametrize("name", [None, 5, ["iid"]])
def test_a_name_is_a_word(name):
    with pytest.raises(UserError, match="split needs a name, one of: classes, dirichlet"):
        Split.from_section({"name": name})
