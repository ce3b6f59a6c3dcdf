"""Every law can fail: one broken method for each, and one that holds them all."""

from pathlib import Path

import pytest
import torch

from idiolect.conformance import laws
from idiolect.conformance.problem import Subject

CODE = '''
from dataclasses import dataclass
import torch
from idiolect.core import tree
from idiolect.core.method import hyper
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.fedper import FedPer

@dataclass(frozen=True)
class Coupled(FedAvg):
    """Mixes the clients of a stack where only the server may."""
    def fit(self, down, mine, local):
        up, mine = super().fit(down, mine, local)
        mean = {n: x.mean(0, keepdim=True).expand_as(x) for n, x in up["model"].items()}
        return {"model": mean}, mine

@dataclass(frozen=True)
class Random(FedAvg):
    """Draws from the process's generator."""
    def fit(self, down, mine, local):
        up, mine = super().fit(down, mine, local)
        return {"model": {n: x + torch.rand(1).item() for n, x in up["model"].items()}}, mine

@dataclass(frozen=True)
class Talkative(FedPer):
    """Sends its private head under another name."""
    def fit(self, down, mine, local):
        up, kept = super().fit(down, mine, local)
        return up | {"innocent": kept["own"]["head.weight"]}, kept
    traffic = "any"

@dataclass(frozen=True)
class Understated(FedAvg):
    """Sends its model twice and says nothing of it."""
    def fit(self, down, mine, local):
        up, mine = super().fit(down, mine, local)
        return up | {"again": up["model"]}, mine

@dataclass(frozen=True)
class Hoarder(FedAvg):
    """Keeps a part of its state in the program."""
    def aggregate(self, server, ups):
        super().aggregate(server, ups)
        SEEN[id(server)] = SEEN.get(id(server), 0) + 1
        server["model"] = tree.scale(server["model"], 1 / SEEN[id(server)])
SEEN = {}

@dataclass(frozen=True)
class Telepath(FedAvg):
    """Clients read what only the server's object knows."""
    def server_init(self, net, start, clients):
        object.__setattr__(self, "secret", 0.5)
        return super().server_init(net, start, clients)
    def fit(self, down, mine, local):
        up, mine = super().fit(down, mine, local)
        return {"model": tree.scale(up["model"], self.secret)}, mine

@dataclass(frozen=True)
class Sound(FedPer):
    """Nothing is wrong with it."""
'''

BROKEN = {
    "Coupled": ("loop = stacked", "differs by"),
    "Random": ("a seed is a run", "two runs with one seed differ"),
    "Talkative": ("nothing private is sent", "own/head.weight is in innocent"),
    "Understated": ("bytes counted are bytes sent", 'traffic = "2" is declared, 3.00'),
    "Hoarder": ("a resumed run is the same run", "keep everything in the server's state"),
    "Telepath": ("sites give the simulator's numbers", "does not arrive: it fails at "),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "broken.py"
    path.write_text(CODE)
    return path


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_law_is_found(name: str, file: Path) -> None:
    law, why = BROKEN[name]
    own = f"{file}:{name}"
    found = laws.LAWS[law](Subject(own, [own]))
    assert why in found


def test_a_sound_method_holds_all(file: Path) -> None:
    own = f"{file}:Sound"
    found = list(laws.check(Subject(own, [own])))
    assert [one.law for one in found] == list(laws.LAWS)
    assert [one.reason for one in found if not one.holds] == []


def test_what_is_no_number_is_not_zero() -> None:
    """Nor is another type or shape of the same numbers the same bits."""
    nan, zero = torch.tensor([torch.nan, 1.0]), torch.tensor([0.0, 1.0])
    assert laws._other_bits({"a": nan}, {"a": nan.clone()}) == ""
    for other in (zero, nan.double(), nan[:1], nan[None]):
        assert laws._other_bits({"a": nan}, {"a": other}) == "a"
