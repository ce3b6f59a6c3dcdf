"""What a round produced, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect.core.tree import Tree


@dataclass
class Round:
    """Everything one round produced; round 0 is the starting point before any training."""

    round: int
    started: list[int]
    arrived: list[int]
    staleness: list[int]
    clients: dict[str, np.ndarray]  # without scores until settled
    logs: Tree = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    samples: int = 0
    steps: int | None = 0  # gradient steps of all clients; None where nobody counted them
    train_loss: float = float("nan")
    seconds: float = 0.0
    seconds_eval: float = 0.0
    open: Open | None = None  # what is not known yet

    def settle(self) -> Round:
        """Wait for the numbers that a GPU may still be computing."""
        if self.open is not None:
            self.train_loss = float(self.open.loss)
            self.seconds = self.open.whole.seconds
            self.seconds_eval = self.open.testing.seconds if self.open.testing else 0.0
            self.clients |= self.open.scores()
            self.open = None
        return self


@dataclass
class Open:
    """The numbers of a round that a GPU has yet to give."""

    loss: Tensor
    whole: Span
    scores: Callable[[], dict[str, np.ndarray]]
    testing: Span | None = None


class Span:
    """How long something takes: on a GPU from mark to mark in its stream, whenever that is read."""

    def __init__(self, device: torch.device):
        self._device = device
        self._begin = self._mark()
        self._end: Any = None

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def end(self) -> Span:
        self._end = self._mark()
        return self

    @property
    def seconds(self) -> float:
        if self._device.type != "cuda":
            return float(self._end - self._begin)
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) / 1000
