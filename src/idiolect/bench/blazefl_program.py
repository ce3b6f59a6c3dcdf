"""What a user of BlazeFL writes: the data, the network, and the loop over its handler and trainer.

Started by `child.py` with its settings as JSON; imports nothing of us. Its worker processes load
this file again. The network is that of `fedas_cnn`.
"""

import functools
import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blazefl.contrib import (  # type: ignore[import-not-found]
    FedAvgParallelClientTrainer,
    FedAvgSerialClientTrainer,
    FedAvgServerHandler,
)
from blazefl.core import ModelSelector, PartitionedDataset  # type: ignore[import-not-found]
from blazefl.utils import seed_everything  # type: ignore[import-not-found]
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@functools.cache
def samples(file: Path) -> TensorDataset:
    arrays = np.load(file)
    return TensorDataset(torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"]))


class DealtSamples(PartitionedDataset):
    """One file of training samples per client; the server tests with everybody's test samples."""

    def __init__(self, folder: Path):
        self.folder = folder

    def get_dataset(self, type_: str, cid: int | None) -> TensorDataset:
        part = "train" if type_ == "train" else "test"
        return samples(self.folder / part / f"{'all' if cid is None else cid}.npz")

    def get_dataloader(self, type_: str, cid: int | None, batch_size: int | None) -> DataLoader:
        return DataLoader(self.get_dataset(type_, cid), batch_size, shuffle=type_ == "train")


class Cnn(ModelSelector):
    """Two 5x5 convolutions of 32 and 64 channels, 512 units."""

    def __init__(self, channels: int, flat: int, classes: int):
        self.channels, self.flat, self.classes = channels, flat, classes

    def select_model(self, model_name: str) -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(self.channels, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(self.flat, 512), nn.ReLU(), nn.Linear(512, self.classes)),
        )


def main(settings: dict[str, Any]) -> None:
    seed_everything(0, device=settings["device"])
    clients, device = settings["clients"], settings["device"]
    size = {key: settings[key] for key in ("channels", "flat", "classes")}
    shared = {
        "model_selector": Cnn(**size),
        "model_name": "cnn",
        "dataset": DealtSamples(Path("samples").absolute()),
        "num_clients": clients,
        "batch_size": settings["batch_size"],
        "device": device,
    }
    handler = FedAvgServerHandler(global_round=settings["rounds"], sample_ratio=1.0, **shared)
    training = shared | {"epochs": settings["epochs"], "lr": settings["lr"]}
    if settings["processes"] == 0:
        trainer: Any = FedAvgSerialClientTrainer(**training)
    else:
        trainer = FedAvgParallelClientTrainer(
            share_dir=Path("share").absolute(),
            state_dir=Path("state").absolute(),
            seed=0,
            num_parallels=settings["processes"],
            **training,
        )
    while not handler.if_stop():
        asked = handler.sample_clients()
        trainer.local_process(handler.downlink_package(), asked)
        for package in trainer.uplink_package():
            handler.load(package)
        handler.get_summary()


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")  # as CUDA asks for
    main(json.loads(sys.argv[1]))
