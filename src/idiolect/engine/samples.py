"""The federation's samples, where a device can reach them."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from idiolect.core import devices
from idiolect.data import Federation

Part = Literal["train", "val", "test"]

MAX_SHARE_FOR_NORMALISED = 0.1  # of the free memory, for a normalised copy of all inputs
ROWS_NORMALISED_AT_ONCE = 4096


class Samples:
    """The federation's samples, all of them on the device. They are normalised once for all where
    the memory allows, else whenever a batch is gathered."""

    contents_version = 0  # changes when samples on the device are replaced by others
    storage_version = 0  # changes when `x` or `y` moves: what was captured on it is void

    def __init__(
        self, federation: Federation, device: torch.device, dtype: torch.dtype, whole: bool = False
    ):
        """`whole`: the network takes the whole numbers of `x` (tokens) as they are."""
        self.device, self.dtype, self.whole = device, dtype, whole
        self.x, self.y = self._stored(federation)
        self.labels = federation.y.numpy()
        self.classes, self.has_classes = federation.classes, federation.task.has_classes
        self.parts: dict[Part, tuple[Tensor, ...]] = {
            "train": federation.train,
            "val": federation.val,
            "test": federation.test,
        }
        self._scale, self._shift = self._affine(federation)
        self._prepared, self._gathered = False, 0
        self._train_labels: dict[int, tuple[np.ndarray, Tensor]] = {}

    def train_labels(self, client: int) -> tuple[np.ndarray, Tensor]:
        """Labels of a client's training samples, and how many there are of each class."""
        if client not in self._train_labels:
            rows = self.parts["train"][client].numpy()
            # Without classes all are of one kind: batches in their order keep that of the samples.
            y = self.labels[rows] if self.has_classes else np.zeros(len(rows), np.int64)
            self._train_labels[client] = y, self.counted(y)
        return self._train_labels[client]

    def counted(self, y: np.ndarray) -> Tensor:
        """How many samples with these labels there are of each class."""
        if not self.has_classes:
            return torch.zeros(self.classes).long()
        return torch.bincount(torch.as_tensor(y), minlength=self.classes)

    def _stored(self, federation: Federation) -> tuple[Tensor, Tensor]:
        return federation.x.to(self.device), federation.y.to(self.device)

    def on_device(self, index: Tensor) -> Tensor:
        """Where on the device the samples `index` lie, until the next call; -1 stays -1."""
        return devices.to_device(index, self.device)

    def in_pieces(self, index: Tensor, size: int) -> Iterator[Tensor]:
        """`on_device` for `size` samples at a time."""
        yield from devices.to_device(index, self.device).split(size)

    def reusable(self, index: Tensor) -> Tensor:
        """An index that will be asked for again, where `on_device` needs it."""
        return devices.to_device(index, self.device)

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
        self._gathered += index.numel()
        return self._normalised(self._rows(index))

    def _rows(self, index: Tensor) -> Tensor:
        if self.device.type != "cpu":
            return self.x[index]
        # PyTorch has a faster kernel there for whole rows than for any index.
        return torch.index_select(self.x, 0, index.flatten()).unflatten(0, index.shape)

    def _normalised(self, x: Tensor) -> Tensor:
        if self.whole:
            return x
        x = x.to(self.dtype)
        if self._scale is not None:
            x = x * self._scale
        return x if self._shift is None else x + self._shift

    def prepare(self) -> None:
        """Before training: normalise all inputs once if they take little of the memory, so that
        gathering a batch is one kernel instead of four. On a CPU it takes as long as gathering each
        sample once, so it waits until that many were gathered."""
        if self._prepared or (self.device.type == "cpu" and self._gathered < len(self.x)):
            return
        self._prepared = True
        room = MAX_SHARE_FOR_NORMALISED * devices.free_memory(self.device)
        if self.x.numel() * self.dtype.itemsize <= room:
            self.normalise()

    def normalise(self) -> None:
        """Replace the inputs by what `inputs` makes of them; the numbers stay the same."""
        done = self.x.dtype == self.dtype and self._scale is None and self._shift is None
        if self.whole or done:
            return
        x = torch.empty(self.x.shape, dtype=self.dtype, device=self.device)
        rows = ROWS_NORMALISED_AT_ONCE
        for out, piece in zip(x.split(rows), self.x.split(rows), strict=True):
            out.copy_(self._normalised(piece))
        self.x, self._scale, self._shift = x, None, None
        self.storage_version += 1


class SampleWindow(Samples):
    """Samples in host memory. Those that clients work on now are brought to a buffer on the device,
    which moves only when it must grow."""

    def _stored(self, federation: Federation) -> tuple[Tensor, Tensor]:
        self._host_x, self._host_y = federation.x, federation.y
        return self._host_x[:0].to(self.device), self._host_y[:0].to(self.device)

    def on_device(self, index: Tensor) -> Tensor:
        real = index >= 0
        wanted = index[real]
        n = len(wanted)
        if n > len(self.x):
            room = int(1.3 * n)
            self.x = self.x.new_empty(room, *self.x.shape[1:])
            self.y = self.y.new_empty(room, *self.y.shape[1:])
            self.storage_version += 1
        devices.gather(self._host_x, wanted, self.x[:n])
        devices.gather(self._host_y, wanted, self.y[:n])
        self.contents_version += 1
        where = torch.full_like(index, -1).masked_scatter_(real, torch.arange(n))
        return devices.to_device(where, self.device)

    def in_pieces(self, index: Tensor, size: int) -> Iterator[Tensor]:
        yield from map(self.on_device, index.split(size))

    def reusable(self, index: Tensor) -> Tensor:
        return index

    def prepare(self) -> None:
        """Samples stay as they are: their bytes are copied to the device again and again."""
