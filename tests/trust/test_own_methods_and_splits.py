"""Methods and splits of the user's own, on every command, under the rules of own models."""

import json
from pathlib import Path

import pytest

from idiolect.deploy.client import Client
from idiolect.deploy.messages import Payload
from idiolect.errors import UserError
from idiolect.runs import config as settings
from tests.cli.calls import TINY, call
from tests.deploy.local_federation import LocalTransport, config, served, site_data
from tests.trust.test_foreign_code import refused, unfinished

CODE = """
from dataclasses import dataclass
from pathlib import Path
import numpy as np
from idiolect.core import tree
from idiolect.core.method import Method, hyper
from idiolect.data.splits.base import Split, numbered
from idiolect.methods.fedavg import FedAvg
Path({mark!r}).touch()

@dataclass(frozen=True)
class Halfway(FedAvg):
    '''Every client works with a mixture of its own last model and the mean of all.'''
    share: float = hyper(0.5, "share of the client's own model", min=0, max=1)
    def client_init(self, start, local):
        return {{"own": start}}
    def fit(self, down, mine, local):
        own = self.train(local, self.personal(down, mine))
        return {{"model": own}}, {{"own": own}}
    def personal(self, down, mine):
        return tree.lerp(down["model"], mine["own"], self.share)

class NotDeclared(FedAvg):
    share: float = hyper(0.5, "share")

@dataclass(frozen=True)
class OutOfBounds(FedAvg):
    share: float = hyper(2.0, "share", max=1)

@dataclass(frozen=True)
class Required(FedAvg):
    share: "Undefined" = 3

@dataclass(frozen=True)
class Endless(FedAvg):
    rounds_default = None

@dataclass(frozen=True)
class Lacking(Method):
    def fit(self, down, mine, local):
        return {{}}, {{}}

@dataclass(frozen=True)
class Failing(FedAvg):
    def fit(self, down, mine, local):
        return {{"model": undefined}}, {{}}

@dataclass(frozen=True)
class Stripes(Split):
    '''Each client gets every n-th sample, the first `head` of them for training.'''
    head: int = hyper(5, "training samples of every client", min=1)
    name = "iid"  # called by its file, so this is no second one
    def divide(self, pool, seed):
        rows = [np.arange(i, len(pool), self.n) for i in range(self.n)]
        return numbered([r[: self.head] for r in rows], [r[self.head :] for r in rows])

def stripes(pool, clients, head: int = 5, wrong: str = ""):
    if wrong == "rows":
        return [([0], [len(pool)])]
    if wrong:
        return wrong
    rows = [np.arange(i, len(pool), clients) for i in range(clients)]
    return {{f"site {{i}}": (r[:head], r[head:]) for i, r in enumerate(rows)}}

def no_default(pool, clients, head):
    return []
"""


@pytest.fixture(autouse=True)
def code(tmp_path: Path) -> Path:
    """Is there once the code has run."""
    mark = tmp_path / "the code ran"
    Path("my.py").write_text(CODE.format(mark=str(mark)))
    return mark


def test_an_own_method_runs_is_checked_and_resumed() -> None:
    done = call("run", "my.py:Halfway", *TINY, "--set", "method.share=0.3", "--out", "r", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["method"] == "Halfway"
    section = settings.read_yaml(Path("r/config.yaml"))["method"]
    assert section["name"] == str(Path("my.py").absolute()) + ":Halfway"
    assert section["share"] == 0.3 and section["weighting"] == "samples"
    rows = json.loads(call("report", "r", "--json").stdout)
    assert rows[0]["method"] == "Halfway"
    assert call("resume", unfinished("r")).exit_code == 0
    refused(call("run", "my.py:Halfway", "--set", "method.share=3"), "method.share must be at")
    refused(call("run", "my.py:Halfway", "--set", "method.shar=0"), "did you mean 'share'?")
    listed = json.loads(call("list", "methods", "my.py:Halfway", "--json").stdout)
    assert [one["name"] for one in listed] == ["Halfway"]
    assert "share" in [option["name"] for option in listed[0]["options"]]


def test_an_own_method_is_compared_swept_and_set_by_its_class() -> None:
    words = ["compare", "fedavg", "my.py:Halfway", *TINY, "--out", "c", "--json"]
    done = call(*words, "--sweep", "Halfway.share=0.1,0.9", "--set", "Halfway.lr=0.2")
    assert done.exit_code == 0, done.output
    assert [row["method"] for row in json.loads(done.stdout)] == [
        *("fedavg", "Halfway share=0.1", "Halfway share=0.9")
    ]
    made = {p.parent.name: settings.read_yaml(p)["method"] for p in Path("c").glob("*/config.yaml")}
    assert made["Halfway-share0.9-seed0"]["lr"] == 0.2 and made["fedavg-seed0"]["lr"] == 0.01
    twice = [*words[:3], str(Path("my.py").absolute()) + ":Halfway"]
    refused(call(*twice), "compared once")


@pytest.mark.parametrize("name", ["Stripes", "stripes"])
def test_an_own_split_divides_and_is_checked(name: str) -> None:
    how = ["--split", f"my.py:{name}", "--set", "split.head=20", "--clients", "4"]
    done = call("run", "fedavg", *how, "--rounds", "1", "--model", "linear", "--out", "r")
    assert done.exit_code == 0, done.output
    assert settings.read_yaml(Path("r/config.yaml"))["split"]["head"] == 20
    about = json.loads(call("data", "inspect", *how, "--json").stdout)
    assert [client["train"] for client in about["clients"]] == [20] * 4
    assert about["clients"][1]["name"] == ("1" if name == "Stripes" else "site 1")
    assert call("resume", unfinished("r")).exit_code == 0
    refused(call("run", "fedavg", *how[:2], "--set", "split.head=x"), "split.head must be a whole")
    listed = json.loads(call("list", "splits", f"my.py:{name}", "iid", "--json").stdout)
    assert [one["name"] for one in listed] == [name, "iid"]


def test_a_changed_split_is_read_anew() -> None:
    how = ["data", "inspect", "--split", "my.py:stripes", "--clients", "4", "--json"]
    assert json.loads(call(*how).stdout)["samples"]["train"] == 20
    Path("my.py").write_text(Path("my.py").read_text().replace("head: int = 5,", "head: int = 6,"))
    assert json.loads(call(*how).stdout)["samples"]["train"] == 24


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["my.py:stripes"], "not a class of the kind that is needed: a subclass of idiolect's Me"),
        (["subprocess:getoutput"], "not a class of the kind that is needed"),
        (
            ["my.py:NotDeclared"],
            "declares share but is no dataclass; write @dataclass(frozen=True)",
        ),
        (["my.py:Lacking"], "lacks aggregate, download, personal, server_init"),
        (["my.py:OutOfBounds"], "with its defaults: method.share must be at most 1, got 2.0"),
        (["my.py:Required"], "with its defaults: name 'Undefined' is not defined"),
        (["my.py:Endless"], "rounds_default must be a whole number"),
        (["my.py:Nothing"], "cannot import method 'my.py:Nothing': AttributeError"),
        (["nowhere.py:Halfway"], "cannot read"),
        (["my.py:Failing"], "your own code failed at"),
        (["fedavg", "--split", "my.py:Halfway"], "neither a function nor a subclass"),
        (["fedavg", "--split", "my.py:no_default"], "its parameter head has no default"),
        (["fedavg", "--split", "my.py:stripes", "--set", "split.wrong=rows"], "from 0 to 1796"),
        (["fedavg", "--split", "my.py:stripes", "--set", "split.wrong=x"], "a dict of clients"),
    ],
)
def test_what_is_wrong_with_own_code_is_one_line(words: list[str], told: str) -> None:
    refused(call("run", *words, "--rounds", "1", "--out", "r"), told)


@pytest.mark.parametrize("section", ["method: 'my.py:Halfway'", "split: {name: 'my.py:stripes'}"])
def test_a_config_file_loads_nothing(code: Path, section: str) -> None:
    Path("c.yaml").write_text(section + "\nmodel: linear\nrounds: 1\n")
    words = ["compare", "fedavg", "--config", "c.yaml", "--out", "r"]
    name = "my.py:stripes" if "split" in section else "my.py:Halfway"
    if "split" in section:
        refused(call(*words), "c.yaml: split.name names code", "--allow-code")
        assert not code.exists()
        assert call(*words, "--clients", "3", "--allow-code", name).exit_code == 0
        assert code.exists()
    else:  # a comparison names its methods itself
        assert call(*words).exit_code == 0 and not code.exists()


def test_the_run_of_a_stranger_loads_nothing(code: Path, someone: Path) -> None:
    assert call("run", "my.py:Halfway", *TINY, "--out", "r").exit_code == 0
    (someone / ".config/idiolect/seal.key").write_bytes(b"x" * 32)
    code.unlink()
    refused(call("resume", unfinished("r")), "method.name of r names code", "--allow-code")
    refused(call("export", "r", "--client", "0"), "method.name names code", "--allow-code")
    assert call("report", "r").exit_code == 0 and not code.exists()
    done = call("resume", "r", "--allow-code", "my.py:Halfway")
    assert done.exit_code == 0, done.output


def test_changed_code_is_said(code: Path) -> None:
    assert call("run", "my.py:Halfway", *TINY, "--out", "r").exit_code == 0
    unfinished("r")
    code.unlink()
    Path("my.py").write_text(Path("my.py").read_text() + "\n# changed\n")
    refused(call("resume", "r"), "the code of method", "changed since r was started")
    refused(call("export", "r", "--client", "0"), "changed since r was started")
    assert not code.exists()


def test_a_site_runs_its_own_method_and_no_other(code: Path, tmp_path: Path) -> None:
    file = str(Path("my.py").absolute())
    name = f"{file}:Halfway"
    made = {**config("fedavg"), "method": {"name": "/srv/elsewhere/my.py:Halfway", "share": 0.5}}
    told = {k: made[k] for k in ("method", "model", "seed", "dtype")}
    request = Payload({"kind": "fit", "experiment": "e", "version": 0, "config": told})
    answer = Client(0, site_data(0), tmp_path / "site").answer(request)
    assert "start the client with --method my.py:Halfway" in answer.meta["refused"]
    assert not code.exists()
    sites = [Client(i, site_data(i), tmp_path / f"site{i}", method=name) for i in range(2)]
    made["method"] = {**made["method"], "name": name}
    server = served(made, LocalTransport(sites), 2, [name])
    assert server.step().arrived == [0, 1] and code.exists()
    with pytest.raises(UserError, match="--allow-code"):
        served(made, LocalTransport(sites), 2)
