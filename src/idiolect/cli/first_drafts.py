"""The files that `idiolect new` writes: a method, split or model that works, and its test."""

import re
from keyword import iskeyword
from pathlib import Path

from idiolect.core import files
from idiolect.errors import UserError, did_you_mean

METHOD = '''"""{name}: say here what the method does, with its equations, paper and defaults.

    w_i <- a w_i + (1 - a) w        before local training; w is the mean of the trained models
"""

from dataclasses import dataclass

from idiolect.core import tree
from idiolect.core.method import Down, Ids, Local, Net, Record, Server, SgdMethod, Tree, Ups, hyper


@dataclass(frozen=True)
class {name}(SgdMethod):
    """Every client works with a mixture of its own last model and the mean of all."""

    share: float = hyper(0.5, "a: share of the client's own model", min=0, max=1)

    name = "{file}"
    personal_part = "the mixture with the client's own last model"
    also_sent = ("own: all",)  # a client keeps a copy of the model it sends

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        return {{"mean": start}}

    def client_init(self, start: Tree, local: Local) -> Record:
        return {{"own": start}}

    def download(self, server: Server, who: Ids) -> Down:
        return Down(shared={{"mean": server["mean"]}})

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        own = self.train(local, self.personal(down, mine))
        return {{"model": own}}, {{"own": own}}

    def aggregate(self, server: Server, ups: Ups) -> None:
        server["mean"] = tree.mix(ups.share, ups["model"])

    def personal(self, down: Record, mine: Record) -> Tree:
        return tree.lerp(down["mean"], mine["own"], self.share)
'''

METHOD_TEST = '''"""Run with `pytest {test}`."""

from pathlib import Path

import pytest

from idiolect.conformance.laws import LAWS
from idiolect.conformance.problem import Subject

NAME = f"{{Path(__file__).with_name('{file}.py')}}:{name}"


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject(NAME, allow_code=[NAME])


@pytest.mark.parametrize("law", LAWS)
def test_the_law_holds(law: str, subject: Subject) -> None:
    assert LAWS[law](subject) == ""
'''

SPLIT = '''"""{name}: say here how the samples come to clients, and where the split is from."""

from dataclasses import dataclass

import numpy as np

from idiolect.core import rng
from idiolect.core.fields import hyper
from idiolect.data.pool import Pool
from idiolect.data.splits.base import Divided, Split, numbered, train_and_test


@dataclass(frozen=True)
class {name}(Split):
    """Client i gets a share that grows with i: the last has `ratio` times as much as the first."""

    ratio: float = hyper(4.0, "samples of the last client, in those of the first", min=1)

    name = "{file}"
    by_class = False

    def divide(self, pool: Pool, seed: int) -> Divided:
        weights = np.linspace(1, self.ratio, self.n)
        parts = []
        for what, rows in train_and_test(pool, self.test_share, seed).items():
            cuts = np.cumsum(weights / weights.sum() * len(rows))[:-1].astype(int)
            parts.append(np.split(rng.keyed(seed, "{file}", what).permutation(rows), cuts))
        return numbered(*parts)
'''

SPLIT_TEST = '''"""Run with `pytest {test}`."""

from pathlib import Path

import numpy as np

from idiolect.data import build

NAME = f"{{Path(__file__).with_name('{file}.py')}}:{name}"


def test_every_sample_comes_to_one_client() -> None:
    made = build({{"name": "digits"}}, {{"name": NAME, "clients": 5}}, seed=0, allow_code=[NAME])
    rows = np.concatenate([*made.train, *made.test])
    assert sorted(rows.tolist()) == list(range(len(made.y)))
    again = build({{"name": "digits"}}, {{"name": NAME, "clients": 5}}, seed=0, allow_code=[NAME])
    assert all(bool((a == b).all()) for a, b in zip(made.train, again.train, strict=True))
'''

MODEL = '''"""{name}: say here which network this is."""

from math import prod

from torch import Tensor, nn


class {name}(nn.Module):
    """One hidden layer. `shape` of a sample and `classes` are given; the rest are settings."""

    def __init__(self, shape: tuple[int, ...], classes: int, hidden: int = 32) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), hidden), nn.ReLU())
        self.head = nn.Linear(hidden, classes)  # what personalized heads replace

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits
'''

MODEL_TEST = '''"""Run with `pytest {test}`."""

from pathlib import Path

import torch

from idiolect import models

NAME = f"{{Path(__file__).with_name('{file}.py')}}:{name}"


def test_it_takes_samples_and_its_settings() -> None:
    model = models.build({{"name": NAME, "hidden": 5}}, (1, 8, 8), 10, allow_code=[NAME])
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
'''

DRAFTS = {
    "method": (METHOD, METHOD_TEST),
    "split": (SPLIT, SPLIT_TEST),
    "model": (MODEL, MODEL_TEST),
}


def write(kind: str, name: str, folder: Path) -> list[Path]:
    """NAME in lower case .py and its test; the paths. UserError if one is there already."""
    if kind not in DRAFTS:
        raise did_you_mean(kind, DRAFTS, "kind")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,60}", name) or iskeyword(name):
        raise UserError(f"'{name[:80]}' is no name for a class; use letters, e.g. Halfway")
    file = name.lower()
    if iskeyword(file):
        raise UserError(f"a file cannot be called {file}.py; choose another name")
    paths = [folder / f"{file}.py", folder / f"test_{file}.py"]
    for path in paths:
        if files.kind(path) is not None:
            raise UserError(f"{path} is there already; choose another name or --out FOLDER")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, DRAFTS[kind], strict=True):
            files.write_text(path, text.format(name=name, file=file, test=paths[1].name))
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from None
    return paths
