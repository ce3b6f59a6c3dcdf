"""A simulation without learning: every number follows from a small state that resume must restore.

Also a program: `python fake_simulation.py OUT ROUNDS PAUSE [resume]` runs it into a directory.
"""

import sys
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect.runs import config as settings
from idiolect.runs import execute as runs
from idiolect.runs.interruption import Interrupted

N = 6


@dataclass
class FakeSimulation:
    rounds: int
    pause: float = 0.0
    validation: bool = False
    diverges_in: int | None = None
    unseen: int = 0
    round: int = 0
    weights: Tensor = field(default_factory=lambda: torch.linspace(0.1, 0.5, N))
    trained: Tensor = field(default_factory=lambda: torch.full((N,), torch.nan))

    def start(self) -> SimpleNamespace:
        return self._done([], 0.0)

    def step(self) -> SimpleNamespace:
        time.sleep(self.pause)
        self.round += 1
        started = [(self.round + k) % N for k in range(3)]
        noise = torch.sin(torch.arange(N) * 3.7 + self.round)
        self.weights = (self.weights + 0.1 * (1 - self.weights) + 0.02 * noise).clamp(0, 1)
        self.trained[started] = (self.weights[started] * 1.1).clamp(0, 1)
        loss = float("nan") if self.round == self.diverges_in else 1 / self.round
        return self._done(started, loss)

    def _done(self, started: list[int], loss: float) -> SimpleNamespace:
        before, after = self.weights.double().numpy().copy(), self.trained.double().numpy().copy()
        nothing = np.full(N, np.nan)
        took_part = np.isin(np.arange(N), started)
        val = before * 0.9 if self.validation else nothing
        clients = {
            "client": np.arange(N, dtype=np.int32),
            "train_size": np.full(N, 40, np.int32),
            "val_size": np.full(N, 10 if self.validation else 0, np.int32),
            "test_size": np.arange(10, 10 + N, dtype=np.int32),
            "started": took_part,
            "arrived": took_part,
            "staleness": np.where(took_part, 0, -1).astype(np.int16),
            "unseen": np.arange(N) >= N - self.unseen,
            "accuracy_before": before,
            "loss_before": 1 - before,
            "accuracy_after": after,
            "loss_after": 1 - after,
            "val_accuracy_before": val,
            "val_loss_before": nothing,
            "val_accuracy_after": nothing,
            "val_loss_after": nothing,
            "accuracy_global": nothing,
            "loss_global": nothing,
        }
        return SimpleNamespace(
            round=self.round,
            started=started,
            arrived=started,
            staleness=[0] * len(started),
            clients=clients,
            logs={"aggregation_weight": self.weights.clone()} if started else {},
            bytes_up=100 * len(started),
            bytes_down=200 * len(started),
            samples=40 * len(started),
            steps=2 * len(started),
            train_loss=loss,
            seconds=0.01,
            seconds_eval=0.004,
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {"server/weights": self.weights.clone(), "clients/trained": self.trained.clone()}
        return tensors, {"round": self.round}

    def restore(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        self.round = meta["round"]
        self.weights, self.trained = tensors["server/weights"], tensors["clients/trained"]

    def server_model(self) -> dict[str, Tensor]:
        return {"weight": self.weights}

    def personal_model(self, client: int) -> dict[str, Tensor]:
        return {"weight": self.weights[client : client + 1]}


def resolved(**changes: Any) -> settings.Config:
    flags: dict[str, Any] = {"method": {"name": "fedavg"}, "rounds": 12, "checkpoint_every": 3}
    return settings.resolve(None, {**flags, **changes})


def build(config: settings.Config) -> FakeSimulation:
    return FakeSimulation(config["rounds"])


if __name__ == "__main__":
    out, rounds, pause, *more = sys.argv[1:]
    try:
        runs.execute(
            resolved(rounds=int(rounds)),
            out,
            resume=bool(more),
            build=lambda config: FakeSimulation(config["rounds"], float(pause)),
        )
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(130)
