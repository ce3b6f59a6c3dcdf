"""Peers: small stand-ins with their names, written here; the real ones where a path is given.

IDIOLECT_PEER_PFLLIB, IDIOLECT_PEER_FEDAS and IDIOLECT_PEER_PFL name checkouts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from idiolect import bench, methods, models
from idiolect.bench import peers
from idiolect.bench.headline import headline_jobs
from idiolect.bench.job import Job, Row, random_federation
from idiolect.cli.app import app
from idiolect.errors import UserError
from idiolect.runs import environment
from idiolect.simulation.simulation import Simulation

SERVER = """
import time
import numpy as np
import torchvision
from calmsize import size

class Server:
    def __init__(self, args):
        self.args, self.Budget, self.rs_test_acc, self.rounds = args, [], [], 0

    def evaluate(self):
        total = 0.0
        for part in ("train", "test"):
            for i in range(self.args.num_clients):
                with open(f"../dataset/{self.args.dataset}/{part}/{i}.npz", "rb") as file:
                    data = np.load(file, allow_pickle=True)["data"].tolist()
                total += float(data["x"].sum() + data["y"].sum())
        self.rs_test_acc.append(total + 1000 * self.rounds)

    def train(self):
        for _ in range(self.args.global_rounds + 1):
            began = time.time()
            self.evaluate()
            self.rounds += 1
            self.Budget.append(time.time() - began)
"""
MAIN = """
import argparse
from flcore.servers.serverbase import Server

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("dataset", "model", "algorithm", "device"):
        parser.add_argument(f"--{name}")
    for name in ("num_classes", "num_clients", "batch_size", "local_epochs", "global_rounds"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--local_learning_rate", type=float)
    args = parser.parse_args()
    assert args.algorithm != "FedPer", "FedPer is broken"
    Server(args).train()
    raise SystemExit("it was not stopped after the last round")
"""


@pytest.fixture
def fake_pfllib(tmp_path: Path) -> Path:
    root = tmp_path / "fake"
    (root / "system/flcore/servers").mkdir(parents=True)
    (root / "system/flcore/servers/serverbase.py").write_text(SERVER)
    (root / "system/main.py").write_text(MAIN)
    return root


def job(algorithm: str = "FedAvg") -> Job:
    federation = random_federation([8, 12], (1, 28, 28), 0.5)
    section = {"name": "fedavg", "lr": 0.1, "batch_size": 4}
    return Job({"method": "fedavg"}, section, federation, peer=("pfllib", algorithm))


def test_a_peer_gets_our_samples_and_is_stopped_in_time(fake_pfllib: Path, tmp_path: Path) -> None:
    one = job()
    found = peers.run(one, fake_pfllib, "cpu", 3, tmp_path)
    fed = one.federation
    rows = torch.cat([*fed.train, *fed.test])
    total = float(fed.inputs(rows).sum() + fed.y[rows].sum())
    assert found["accuracy"] == pytest.approx(total + 4000, rel=1e-4)  # tested after four rounds
    assert found["rounds"] == 4
    assert found["stood_in"] == ["calmsize", "torchvision"]
    assert found["seconds"] == pytest.approx(found["train_s"] + found["evaluation_s"])
    assert found["cpu_s"] > 0 and found["version"] is None


def test_a_peer_that_fails_is_one_line(fake_pfllib: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"peer pfllib FedPer failed.*FedPer is broken") as error:
        peers.run(job("FedPer"), fake_pfllib, "cpu", 1, tmp_path)
    assert "\n" not in str(error.value)


def test_a_stand_in_is_no_library(fake_pfllib: Path, tmp_path: Path) -> None:
    """What would be called in one fails, and says what to install."""
    main = fake_pfllib / "system/main.py"
    main.write_text(MAIN.replace("Server(args).train()", "import calmsize; calmsize.size(1)"))
    with pytest.raises(UserError, match=r"calmsize.size is needed: install calmsize"):
        peers.run(job(), fake_pfllib, "cpu", 1, tmp_path)


def test_command_compares_and_fails_at_the_end(fake_pfllib: Path, tmp_path: Path) -> None:
    """FedAvg is compared, FedPer breaks, FedAS is not there: our rows are written all the same."""
    out = tmp_path / "result.json"
    sizes = ["--quick", "--device=cpu", "--peer-rounds=1"]
    given = [f"--peer=pfllib={fake_pfllib}", f"--peer=fedas={tmp_path / 'nowhere'}"]
    command = ["bench", "pfllib-round", *sizes, *given, f"--out={out}"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert len(errors) == 2
    assert "no system/main.py" in errors[0] and "FedPer is broken" in errors[1]
    result = json.loads(out.read_text())
    assert [row["method"] for row in result["rows"]] == ["fedavg", "fedper", "fedas"]
    (theirs,) = result["peers"]
    first = result["rows"][0]
    assert first["ratio"] == pytest.approx(theirs["seconds"] / first["seconds"])
    assert "ratio" not in result["rows"][1] and "ratio" in done.stdout
    assert "unfinished" not in result


def test_a_stopped_benchmark_keeps_what_it_measured(
    fake_pfllib: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = peers.run

    def stopped(one: Job, *rest: Any) -> Row:
        if one.peer == ("pfllib", "FedPer"):
            raise KeyboardInterrupt
        return real(one, *rest)

    monkeypatch.setattr(peers, "run", stopped)
    out = tmp_path / "result.json"
    command = ["bench", "pfllib-round", "--quick", "--device=cpu", "--peer-rounds=1"]
    done = CliRunner().invoke(app, [*command, f"--peer=pfllib={fake_pfllib}", f"--out={out}"])
    assert done.exit_code != 0
    result = json.loads(out.read_text())
    assert result["unfinished"] and result["machine"]["packages"]["torch"]
    assert [row["method"] for row in result["rows"]] == ["fedavg", "fedper"]
    assert "ratio" in result["rows"][0] and "ratio" not in result["rows"][1]


def test_a_copy_inside_another_repository_has_no_version(fake_pfllib: Path, tmp_path: Path) -> None:
    """Not the commit of the repository around it; its own checkout has one."""

    def version() -> Any:
        return peers.run(job(), fake_pfllib, "cpu", 1, tmp_path)["version"]

    def commit(place: Path) -> str:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        for words in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "one"]):
            subprocess.run(["git", "-C", str(place), *words], check=True)
        return environment.revision(place) or ""

    assert commit(fake_pfllib.parent) and version() is None
    own = commit(fake_pfllib)
    assert own and version() == own


@pytest.mark.parametrize(
    ("given", "words"),
    [("pfllib", "takes NAME=PATH"), ("pfllib=", "takes NAME=PATH"), ("pflib=x", "'pfllib'")],
)
def test_mistakes(given: str, words: str) -> None:
    done = CliRunner().invoke(app, ["bench", "cpu", "--quick", "--peer", given])
    assert done.exit_code == 2 and words in done.stderr


def test_a_benchmark_without_that_peer(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["bench", "server", "--quick", "--peer", f"pfl={tmp_path}"])
    assert done.exit_code == 2
    assert "'server' has no job for pfl; --peer pfl goes with pfl-headline" in done.stderr


# --- the real ones ---


def checkout(name: str) -> Path:
    path = os.environ.get(f"IDIOLECT_PEER_{name}")
    if not path:
        pytest.skip(f"IDIOLECT_PEER_{name} names no checkout")
    return Path(path)


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("pfllib-round", "pfllib"),
        ("pfllib-round", "fedas"),
        ("cpu", "pfllib"),
        ("pfl-headline", "pfl"),
    ],
)
def test_real_peer(name: str, peer: str) -> None:
    path = checkout(peer.upper())
    result = bench.run(name, "cpu", True, {peer: path}, peer_rounds=1)
    assert result["failed"] == []
    for row in result["peers"]:
        assert 0 < row["seconds"] < 600 and 0 <= row["accuracy"] <= 1


ORACLE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("child", sys.argv[1])
child = importlib.util.module_from_spec(spec)
spec.loader.exec_module(child)
root = sys.argv[2]
sys.path[:0] = [root + "/benchmarks", root]
sys.meta_path.append(child.StandIns(["multiprocess", "dp_accounting", "prv_accountant"]))
import numpy as np, torch
from model.pytorch import simple_cnn
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
from pfl.data import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel

torch.manual_seed(0)
net = simple_cnn((32, 32, 3), 10)
for module in net.modules():
    if isinstance(module, torch.nn.Dropout):
        module.p = 0.0
values = {f"start{i}": p.detach().numpy().copy() for i, p in enumerate(net.parameters())}
data = np.load("data.npz")
x, y = torch.tensor(data["x"]), torch.tensor(data["y"])[..., None].float()
users = {i: (x[i], y[i]) for i in range(len(x))}
dealt = FederatedDataset.from_slices(users, get_user_sampler("minimize_reuse", list(users)))
server = torch.optim.SGD(net.parameters(), 1.0)
model = PyTorchModel(net, local_optimizer_create=torch.optim.SGD, central_optimizer=server)
FederatedAveraging().run(
    NNAlgorithmParams(2, 10, 3, 0),
    SimulatedBackend(dealt, dealt, [WeightByUser()]),
    model,
    NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=10),
)
values |= {f"end{i}": p.detach().numpy() for i, p in enumerate(net.parameters())}
np.savez("out.npz", **values)
"""


def test_headline_is_the_arithmetic_of_pfl(tmp_path: Path) -> None:
    """Two rounds of three users from the same weights, without dropout: the same model."""
    path = checkout("PFL")
    fed = random_federation([60] * 6, (3, 32, 32), 50 / 60)
    x = torch.stack([fed.inputs(rows).permute(0, 2, 3, 1) for rows in fed.train])
    np.savez(tmp_path / "data.npz", x=x.numpy(), y=torch.stack([fed.y[r] for r in fed.train]))
    command = [sys.executable, "-P", "-c", ORACLE, str(peers.CHILD), str(path)]
    subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    theirs = np.load(tmp_path / "out.npz")
    net = models.build({"name": "simple_cnn"}, fed.shape, 10)
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    names = [n for n, _ in net.named_parameters()]
    sim = Simulation(
        methods.build(headline_jobs(quick=True)[0].method),
        fed,
        net,
        rounds=2,
        schedule=[[0, 1, 2], [3, 4, 5]],
        init={n: torch.tensor(theirs[f"start{i}"]) for i, n in enumerate(names)},
        device="cpu",
    )
    sim.step(), sim.step()
    ours = sim.server_model()
    assert ours is not None
    for i, n in enumerate(names):
        moved = np.abs(theirs[f"end{i}"] - theirs[f"start{i}"]).max()
        assert moved > 1e-3
        assert np.abs(ours[n].numpy() - theirs[f"end{i}"]).max() < 1e-6
