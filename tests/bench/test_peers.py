"""Peers: small stand-ins with their names, written here; the real ones where a path is given.

IDIOLECT_PEER_PFLLIB, _FEDAS, _PFL, _FLBENCH and _BLAZEFL name checkouts.
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
from idiolect.bench.against_peers import AgainstPeers
from idiolect.bench.headline import headline_jobs
from idiolect.bench.job import Job, Row, random_federation
from idiolect.bench.round_time import pfllib_jobs
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


FEDAVG = ("pfllib", "FedAvg")


def job(shape: tuple[int, ...] = (1, 28, 28)) -> Job:
    federation = random_federation([8, 12], shape, 0.5)
    return Job({"method": "fedavg"}, {"name": "fedavg", "lr": 0.1, "batch_size": 4}, federation)


def test_a_peer_gets_our_samples_and_is_stopped_in_time(fake_pfllib: Path, tmp_path: Path) -> None:
    one = job()
    found = peers.run(one, FEDAVG, fake_pfllib, "cpu", 3, tmp_path)
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
        peers.run(job(), ("pfllib", "FedPer"), fake_pfllib, "cpu", 1, tmp_path)
    assert "\n" not in str(error.value)


def test_a_stand_in_is_no_library(fake_pfllib: Path, tmp_path: Path) -> None:
    """What would be called in one fails, and says what to install."""
    main = fake_pfllib / "system/main.py"
    main.write_text(MAIN.replace("Server(args).train()", "import calmsize; calmsize.size(1)"))
    with pytest.raises(UserError, match=r"calmsize.size is needed: install calmsize"):
        peers.run(job(), FEDAVG, fake_pfllib, "cpu", 1, tmp_path)


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

    def stopped(one: Job, whose: tuple[str, str], *rest: Any) -> Row:
        if whose == ("pfllib", "FedPer"):
            raise KeyboardInterrupt
        return real(one, whose, *rest)

    monkeypatch.setattr(peers, "run", stopped)
    out = tmp_path / "result.json"
    command = ["bench", "pfllib-round", "--quick", "--device=cpu", "--peer-rounds=1"]
    done = CliRunner().invoke(app, [*command, f"--peer=pfllib={fake_pfllib}", f"--out={out}"])
    assert done.exit_code != 0
    result = json.loads(out.read_text())
    assert result["unfinished"] and result["machine"]["packages"]["torch"]
    assert [row["method"] for row in result["rows"]] == ["fedavg", "fedper", "fedas"]  # ours first
    assert "ratio" in result["rows"][0] and "ratio" not in result["rows"][1]


def test_a_copy_inside_another_repository_has_no_version(fake_pfllib: Path, tmp_path: Path) -> None:
    """Not the commit of the repository around it; its own checkout has one."""

    def version() -> Any:
        return peers.run(job(), FEDAVG, fake_pfllib, "cpu", 1, tmp_path)["version"]

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


# --- FL-bench ---

FLBENCH = {
    "config/defaults.yaml": "method: none\ncommon: {global_epoch: 100, seed: 7}\n"
    "model: {name: lenet5}\ndataset: {name: mnist}\noptimizer: {lr: 0.01}\n",
    "src/utils/constants.py": "FLBENCH_ROOT = None\n",
    "src/utils/functional.py": "import pynvml\n\ndef get_optimal_cuda_device(use_cuda):\n"
    "    pynvml.nvmlInit()\n",
    "data/utils/datasets.py": """
import numpy as np
import torchvision
from torchvision import transforms

class Synthetic:
    def __init__(self, root):
        self.x, self.y = np.load(root / "data.npy"), np.load(root / "targets.npy")

WEIGHTS = torchvision.models.ResNet18_Weights.DEFAULT
DATASETS = {"cifar10": lambda root: transforms.Compose([]), "synthetic": Synthetic}
""",
    "src/server/fedavg.py": """
import pickle
from types import SimpleNamespace
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from data.utils.datasets import DATASETS
from src.utils.constants import FLBENCH_ROOT
from src.utils.functional import get_optimal_cuda_device

class FedAvgClient:
    def evaluate(self, server, client):
        dealt = server.dealt["data_indices"][client]
        rows = dealt["train"] + dealt["test"]
        return float(server.data.x[rows].sum() + server.data.y[rows].sum())

class FedAvgServer:
    def __init__(self, args):
        self.args, self.rounds, self.total, self.test_results = args, 0, 0.0, {}
        self.device = get_optimal_cuda_device(args.common.use_cuda)
        self.output = HydraConfig.get().runtime.output_dir
        root = FLBENCH_ROOT / "data" / args.dataset.name
        self.data = DATASETS[args.dataset.name](root, **self.get_dataset_transforms())
        with open(root / "partition.pkl", "rb") as file:
            self.dealt = pickle.load(file)

    def get_dataset_transforms(self):
        raise NotImplementedError

    def train(self):
        for _ in range(self.args.common.global_epoch):
            self.rounds += 1
            clients = self.dealt["separation"]["train"]
            self.total = sum(FedAvgClient().evaluate(self, i) for i in clients)
            self.display_metrics()

    def display_metrics(self):
        pass

    def test_client_models(self):
        total = SimpleNamespace(accuracy=100 * (self.total + 1000 * self.rounds))
        self.test_results[self.rounds] = {"all_clients": {"before": {"test": total}}}
""",
    "main.py": """
import sys
import hydra
from omegaconf import DictConfig, OmegaConf
from src.server.fedavg import FedAvgServer

@hydra.main(config_path="config", config_name="defaults", version_base=None)
def main(config: DictConfig):
    given = OmegaConf.to_object(config)
    assert given["method"] == "fedavg" and given["model"] == {"name": "avgcnn"}, given
    assert given["optimizer"] == {"lr": 0.1}, given
    assert given["common"] == {"global_epoch": 5, "seed": 7, "join_ratio": 1.0, "local_epoch": 1,
                               "batch_size": 4, "use_cuda": False}, given
    del config.model
    assert not hasattr(config, "model") and "model" not in config
    FedAvgServer(config).train()
    raise SystemExit("it was not stopped after the last round")

if __name__ == "__main__":
    sys.argv.append("hydra.run.dir=./out/${method}")
    main()
""",
}


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_flbench_gets_our_samples_and_settings(tmp_path: Path) -> None:
    """Through its main program, with stand-ins for what it reads its settings with."""
    one = job((3, 32, 32))
    root = write(tmp_path / "fake", FLBENCH)
    found = peers.run(one, ("flbench", "FedAvg"), root, "cpu", 3, tmp_path)
    fed = one.federation
    rows = torch.cat([*fed.train, *fed.test])
    total = float(fed.inputs(rows).sum() + fed.y[rows].sum())
    assert found["accuracy"] == pytest.approx(total + 4000, rel=1e-4)  # tested after four rounds
    assert found["rounds"] == 4 and found["seconds"] >= found["evaluation_s"] > 0
    missing = {"hydra", "omegaconf", "pynvml", "torchvision"}
    assert missing - set(found["stood_in"]) == set()


# --- BlazeFL ---

BLAZEFL = {
    "src/blazefl/__init__.py": "",
    "src/blazefl/core/__init__.py": "class ModelSelector: ...\nclass PartitionedDataset: ...\n",
    "src/blazefl/utils/__init__.py": "def seed_everything(seed, device): ...\n",
    "src/blazefl/contrib/__init__.py": "from blazefl.contrib.fedavg import *\n",
    "src/blazefl/contrib/fedavg.py": """
from types import SimpleNamespace
import torch
from tqdm import tqdm

def total(loader):
    return sum(float(x.sum() + y.sum()) for x, y in tqdm(loader, leave=False))

class FedAvgServerHandler:
    def __init__(self, global_round, sample_ratio, **settings):
        self.of, self.last, self.round = SimpleNamespace(**settings), global_round, 0
        self.model, self.sum = self.of.model_selector.select_model(self.of.model_name), 0.0
        self.model(torch.zeros(1, 3, 32, 32))

    def if_stop(self):
        return self.round >= self.last

    def sample_clients(self):
        return list(range(self.of.num_clients))

    def downlink_package(self):
        return None

    def load(self, package):
        self.sum += package

    def get_summary(self):
        self.round += 1
        tests = total(self.of.dataset.get_dataloader("test", None, self.of.batch_size))
        acc, self.sum = self.sum + tests + 1000 * self.round, 0.0
        return {"server_acc": acc}

class FedAvgSerialClientTrainer:
    def __init__(self, **settings):
        self.of, self.cache = SimpleNamespace(**settings), []
        assert self.of.lr == 0.1 and self.of.epochs == 1 and self.of.batch_size == 4

    def local_process(self, payload, clients):
        for i in clients:
            self.cache.append(total(self.of.dataset.get_dataloader("train", i, 4)))
            self.evaluate(self.of.dataset.get_dataloader("val", i, 4))

    def evaluate(self, loader):
        total(loader)

    def uplink_package(self):
        found, self.cache = self.cache, []
        return found

class FedAvgParallelClientTrainer(FedAvgSerialClientTrainer):
    def __init__(self, share_dir, state_dir, seed, num_parallels, **settings):
        assert num_parallels >= 1
        super().__init__(**settings)
""",
}


@pytest.mark.parametrize("algorithm", ["FedAvg", "FedAvg serial"])
def test_blazefl_gets_our_samples(algorithm: str, tmp_path: Path) -> None:
    one = job((3, 32, 32))
    root = write(tmp_path / "fake", BLAZEFL)
    found = peers.run(one, ("blazefl", algorithm), root, "cpu", 2, tmp_path)
    fed = one.federation
    rows = torch.cat([*fed.train, *fed.test])
    total = float(fed.inputs(rows).sum() + fed.y[rows].sum())
    assert found["accuracy"] == pytest.approx(total + 3000, rel=1e-4)  # tested after three rounds
    assert found["rounds"] == 3 and found["seconds"] >= found["evaluation_s"] > 0


def test_a_row_for_each_peer_and_no_work_done_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another precision of ours a peer's work is the same."""
    asked = list[tuple[str, str]]()

    def run(one: Job, whose: tuple[str, str], *_: Any) -> Row:
        asked.append(whose)
        name, algorithm = whose
        return {"peer": name, "algorithm": algorithm, "seconds": 8.0, "cpu_s": 8.0}

    monkeypatch.setattr(peers, "run", run)
    monkeypatch.setattr(peers, "check", lambda *_: None)
    result: dict[str, Any] = {"name": "test", "rows": []}
    both = {"flbench": tmp_path, "blazefl": tmp_path}
    theirs = AgainstPeers(result, both, "cuda", None, tmp_path, lambda line: None)
    one = job()
    for seconds in (2.0, 1.0):
        rows = [{"seconds": seconds}]
        result["rows"] += rows
        for name in ("pfllib", *both):
            theirs.add(one, rows, (name, "FedAvg"))
    found = [(row["peer"], row["ratio"]) for row in result["rows"]]
    assert found == [
        *(("flbench FedAvg", 4.0), ("blazefl FedAvg", 4.0)),
        *(("flbench FedAvg", 8.0), ("blazefl FedAvg", 8.0)),
    ]
    assert len(asked) == len(result["peers"]) == 2


def test_only_some_methods() -> None:
    assert [one.label["method"] for one in pfllib_jobs(True, only="fedas,fedavg")] == [
        *("fedas", "fedavg")
    ]
    with pytest.raises(UserError, match="did you mean 'fedavg'"):
        pfllib_jobs(True, only="fedavgs")


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
        ("pfllib-round", "flbench"),
        ("pfllib-round", "blazefl"),
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
