"""The federation's samples, where a device can reach them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from idiolect.core import memory
from idiolect.data import Federation

Part = Literal["train", "val", "test"]


class Data:
    """The federation's samples, on the device once, normalised when a batch is gathered."""

    turn = 0  # changes when samples on the device give way to others
    place = 0  # changes when `x` and `y` lie elsewhere: what was captured on them is void

    def __init__(self, federation: Federation, device: torch.device, dtype: torch.dtype):
        self.device, self.dtype = device, dtype
        self.x, self.y = self._laid(federation)
        self.labels = federation.y.numpy()
        self.classes = federation.classes
        self.parts: dict[Part, tuple[Tensor, ...]] = {
            "train": federation.train,
            "val": federation.val,
            "test": federation.test,
        }
        self._scale, self._shift = self._affine(federation)
        self._labels: dict[int, tuple[np.ndarray, Tensor]] = {}

    def train_labels(self, client: int) -> tuple[np.ndarray, Tensor]:
        """Of a client's training samples, and how many there are of each class."""
        if client not in self._labels:
            y = self.labels[self.parts["train"][client].numpy()]
            counts = torch.bincount(torch.as_tensor(y), minlength=self.classes)
            self._labels[client] = y, counts
        return self._labels[client]

    def _laid(self, federation: Federation) -> tuple[Tensor, Tensor]:
        return federation.x.to(self.device), federation.y.to(self.device)

    def here(self, index: Tensor) -> Tensor:
        """Where on the device the samples `index` lie, until the next call; -1 stays -1."""
        return memory.sent(index, self.device)

    def pieces(self, index: Tensor, size: int) -> Iterator[Tensor]:
        """`here` for `size` samples at a time."""
        yield from memory.sent(index, self.device).split(size)

    def lasting(self, index: Tensor) -> Tensor:
        """An index that will be asked for again, in the form `here` is quickest with."""
        return memory.sent(index, self.device)

    def _affine(self, federation: Federation) -> tuple[Tensor | None, Tensor | None]:
        """uint8 -> /255, then (x - mean) / std per channel, as one multiply-add."""
        unit = 1 / 255 if federation.x.dtype == torch.uint8 else 1.0
        if federation.mean is None or federation.std is None:
            return (None, None) if unit == 1.0 else (self._channel([unit]), None)
        scale = [unit / s for s in federation.std]
        shift = [-m / s for m, s in zip(federation.mean, federation.std, strict=True)]
        return self._channel(scale), self._channel(shift)

    def _channel(self, values: list[float]) -> Tensor:
        shape = (len(values), *([1] * (self.x.ndim - 2))) if len(values) > 1 else ()
        return torch.tensor(values, device=self.device, dtype=self.dtype).reshape(shape)

    def inputs(self, index: Tensor) -> Tensor:
        """The samples `index` (any shape) as the network sees them."""
        x = self.x[index].to(self.dtype)
        if self._scale is not None:
            x = x * self._scale
        return x if self._shift is None else x + self._shift


class Window(Data):
    """Samples in host memory; those that clients work on now are brought to one place on the
    device, which grows when it must and never moves otherwise."""

    def _laid(self, federation: Federation) -> tuple[Tensor, Tensor]:
        self._x, self._y = federation.x, federation.y
        return self._x[:0].to(self.device), self._y[:0].to(self.device)

    def here(self, index: Tensor) -> Tensor:
        real = index >= 0
        wanted = index[real]
        n = len(wanted)
        if n > len(self.x):
            room = int(1.3 * n)
            self.x = self.x.new_empty(room, *self.x.shape[1:])
            self.y = self.y.new_empty(room)
            self.place += 1
        memory.gather(self._x, wanted, self.x[:n])
        memory.gather(self._y, wanted, self.y[:n])
        self.turn += 1
        where = torch.full_like(index, -1).masked_scatter_(real, torch.arange(n))
        return memory.sent(where, self.device)

    def pieces(self, index: Tensor, size: int) -> Iterator[Tensor]:
        yield from map(self.here, index.split(size))

    def lasting(self, index: Tensor) -> Tensor:
        return index
