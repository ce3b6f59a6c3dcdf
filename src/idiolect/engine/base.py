"""What both engines share: data on the device, and the fit of a group of clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from idiolect import tree
from idiolect.federation import Federation
from idiolect.local import Local, Rows
from idiolect.method import Down, Method
from idiolect.net import Net
from idiolect.tree import Record, Tree

Part = Literal["train", "val", "test"]


class Data:
    """The federation's samples, on the device once, normalised when a batch is gathered."""

    def __init__(self, federation: Federation, device: torch.device, dtype: torch.dtype):
        self.device, self.dtype = device, dtype
        self.x = federation.x.to(device)
        self.y = federation.y.to(device)
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


@dataclass
class Fitted:
    """What the clients of a round produced."""

    up: Record
    mine: Record
    trained: Tree
    samples: np.ndarray  # [K] visited in training, counting every epoch
    train_loss: Tensor
    logs: Tree

    def rows(self, first: int, last: int) -> Fitted:
        """The part of clients first..last-1."""

        def cut(record: Record) -> Record:
            return tree.each(lambda x: x[first:last], record)

        return Fitted(
            cut(self.up),
            cut(self.mine),
            cut(self.trained),
            self.samples[first:last],
            self.train_loss[first:last],
            cut(self.logs),
        )


class DataLocal(Local):
    """A `Local` over `Data`: clients' training samples laid one after the other."""

    def __init__(
        self,
        data: Data,
        net: Net,
        train_net: Net,
        round: int,
        ids: list[int],
        keys: list[tuple[int, int]],
    ):
        index = [data.parts["train"][i] for i in ids]
        sizes = [len(i) for i in index]
        self.data, self.train_net = data, train_net
        self.index_host = torch.cat(index)
        self.index = self.index_host.to(data.device)
        labels = [data.train_labels(i) for i in ids]
        self.y_host = [y for y, _ in labels]
        self.offsets = [0, *torch.tensor(sizes).cumsum(0).tolist()]
        counts = torch.stack([each for _, each in labels])
        super().__init__(
            net,
            round,
            ids,
            keys,
            torch.tensor(sizes, device=data.device, dtype=data.dtype),
            counts.to(data.device),
        )

    def class_mean(self, rows: Rows) -> Tensor:
        means = []
        for k in range(len(self.ids)):
            span = slice(self.offsets[k], self.offsets[k + 1])
            y = self.data.y[self.index[span]]
            member = torch.nn.functional.one_hot(y, self.data.classes).to(rows.values.dtype)
            share = member / member.sum(0).clamp_min(1)
            values = rows.values[span]
            mean = share.T @ values.reshape(len(values), -1)
            means.append(mean.reshape(-1, *values.shape[1:]))
        return torch.stack(means)


class Engine(ABC):
    """How K clients compute."""

    name: str

    def __init__(
        self,
        federation: Federation,
        module: nn.Module,
        *,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        keys: list[tuple[int, int]] | None = None,
    ):
        """`keys` gives the (seed, client) of each client's randomness where it is not the obvious
        one: several federations in one stack."""
        self.data = Data(federation, device, dtype)
        self.device, self.dtype = device, dtype
        self.keys = keys or [(seed, i) for i in range(federation.n_clients)]
        module = deepcopy(module).to(device, dtype)
        self.net = Net(module)
        self.train_net = Net(module, training=True)

    @abstractmethod
    def groups(self, ids: Sequence[int]) -> list[list[int]]:
        """Clients that compute together: positions in `ids`."""

    @abstractmethod
    def local(self, ids: list[int], round: int) -> DataLocal: ...

    @abstractmethod
    def evaluate(self, params: Tree, ids: Sequence[int], part: Part) -> tuple[Tensor, Tensor]:
        """Correct predictions and summed loss of each client on its own part, `[K]` on the CPU."""

    def to_device(self, record: Record) -> Record:
        return tree.each(lambda x: x.to(self.device), record)

    def grouped(
        self, ids: Sequence[int], round: int, *records: Record, one_by_one: bool = False
    ) -> Iterator[Any]:
        """The clients group by group: their handle on the data, and their part of each record."""
        for group in [[k] for k in range(len(ids))] if one_by_one else self.groups(ids):
            pick = _picker(group, len(ids))
            local = self.local([ids[g] for g in group], round)
            yield (local, *(tree.each(pick, record) for record in records))

    def fit(
        self, method: Method, down: Down, mine: Record, ids: Sequence[int], round: int
    ) -> Fitted:
        """Local work of clients `ids`."""
        done: list[tuple[Record, Record, Tree, DataLocal]] = []
        chain, relayed = method.one_by_one, None
        records = (down.stacked(len(ids)), mine)
        for local, seen, state in self.grouped(ids, round, *records, one_by_one=chain):
            seen = seen if relayed is None else relayed
            up, state = method.fit(seen, state, local)
            relayed = method.relay(seen, state) if chain else None
            done.append((up, state, method.trained(seen, up, state), local))
        losses = [sum(d[3].losses.values(), start=0 * d[3].sizes) for d in done]
        counts = [max(1, len(d[3].losses)) for d in done]
        return Fitted(
            up=tree.join([d[0] for d in done]),
            mine=tree.join([d[1] for d in done]) if done[0][1] else {},
            trained=tree.join([d[2] for d in done]),
            samples=np.concatenate([d[3].samples_seen for d in done]),
            train_loss=torch.cat([x / c for x, c in zip(losses, counts, strict=True)]),
            logs=tree.join([d[3].logs for d in done]) if done[0][3].logs else {},
        )


def _picker(group: list[int], k: int) -> Any:
    if group == list(range(k)):
        return lambda x: x
    if group == list(range(group[0], group[-1] + 1)):
        return lambda x: x[group[0] : group[-1] + 1]
    chosen = torch.tensor(group)
    return lambda x: x[chosen.to(x.device)]
