"""What clients can do with their data. Methods see only this; the engines implement it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from idiolect.core import rng
from idiolect.core.method import Loss
from idiolect.core.net import Net
from idiolect.core.per_client import Apart, PerClient
from idiolect.core.tree import Tree

Order = Literal["shuffled", "fixed", "class"]


@dataclass(frozen=True)
class Rows:
    """One value per training sample of every client, clients one after the other: `[sum n, ...]`.
    Made by `Local.forward`, given back to `Local` as `x` or `extra`."""

    values: Tensor


Coupled = bool | Literal["filled"]


@dataclass(frozen=True)
class Plan:
    """Which samples each step sees."""

    batch_size: int | Literal["full"] = 32
    epochs: int = 1
    steps: int = 0  # mini-batches instead of epochs
    most: int = 0  # of the epochs, only this many mini-batches (0: all)
    order: Order = "shuffled"
    drop_last: bool = False
    purpose: str = "train"

    def table(
        self,
        y: np.ndarray,
        seed: int,
        client: int,
        round: int,
        start: int = 0,
        merge_single: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The client's batches as rows of positions 0..n-1, filled up with its first sample, and
        the real size of each. With `steps`, the first is batch number `start` of an endless
        sequence of passes, so that a client goes on where its last round stopped.
        `merge_single` joins a last batch of one sample to the one before (BatchNorm needs two)."""
        where, sizes = _one_pass(len(y), self.batch_size, self.drop_last, merge_single)
        batches, first, last = len(sizes), 0, self.epochs
        if self.steps:
            first, last = start // batches, (start + self.steps - 1) // batches + 1
            round = -1
        if self.order == "class":
            rows = _repeated(np.argsort(y, kind="stable")[where], last - first)
        elif self.order == "fixed" or self.batch_size == "full":
            rows = _repeated(where, last - first)
        else:
            draws = [
                rng.keyed(seed, self.purpose, client, round + 1, p) for p in range(first, last)
            ]
            rows = np.concatenate([draw.permutation(len(y))[where] for draw in draws])
        sizes = np.tile(sizes, last - first)
        if self.steps:
            at = start - first * batches
            rows, sizes = rows[at : at + self.steps], sizes[at : at + self.steps]
        elif self.most:
            rows, sizes = rows[: self.most], sizes[: self.most]
        return rows, sizes


@lru_cache(maxsize=512)
def _one_pass(
    n: int, batch_size: int | Literal["full"], drop_last: bool, merge_single: bool
) -> tuple[np.ndarray, np.ndarray]:
    """A pass over n samples as rows of places in their order, and the real size of each."""
    width = n if batch_size == "full" else min(batch_size, n)
    count, rest = divmod(n, width)
    sizes = np.full(count, width)
    if rest == 1 and merge_single and not drop_last:
        sizes[-1] = width = width + 1
    elif rest and not drop_last:
        sizes = np.append(sizes, rest)
    column = np.arange(width)
    begin = (np.cumsum(sizes) - sizes)[:, None]
    where = np.where(column < sizes[:, None], begin + column, 0)
    where.flags.writeable = sizes.flags.writeable = False
    return where, sizes


def _repeated(rows: np.ndarray, times: int) -> np.ndarray:
    """The same pass again and again: a view, where a pass is one batch."""
    return np.broadcast_to(rows, (times, *rows.shape)).reshape(-1, rows.shape[1])


@dataclass(frozen=True, kw_only=True)
class Sgd(Plan):
    """Settings of local SGD: `repeat` takes that many steps on each batch; then, for ONE client,
    `after(params, *extra)` returns the leaves it changes by itself."""

    lr: float | Tensor  # one for all, or one per client
    weight_decay: float = 0.0
    momentum: float = 0.0
    repeat: int = 1
    after: Callable[..., Tree] | None = None


@dataclass(frozen=True)
class Trained:
    """What local SGD did, for K clients."""

    params: Tree
    loss: Tensor  # [K] mean over the samples visited
    steps: Tensor  # [K] steps taken


class Local(ABC):
    """The handle of K clients on their own data.

    A `loss(net, params, x, y, *extra)` is written for ONE client and returns one value per sample;
    the engine makes it K wide and takes the mean. A loss that ties the samples of a batch together
    returns a scalar and is passed with `coupled=True`; or with "filled", if samples with the label
    -1 do not count for it, so that batches may be filled up with such, which is faster. `extra`
    holds trees or tensors with a leading client axis, or `Rows` with one value per sample.
    """

    net: Net
    round: int
    ids: list[int]
    sizes: Tensor  # [K] training samples
    counts: Tensor  # [K, classes] training samples of each class

    def sgd(
        self,
        loss: Loss,
        params: Tree,
        *,
        train: Iterable[str] | None = None,
        extra: Sequence[Any] = (),
        x: Rows | None = None,
        coupled: Coupled = False,
        start: Tensor | int | None = None,
        report: bool = True,
        **settings: Any,
    ) -> Trained:
        """Mini-batch SGD from `params`, with the fields of `Sgd` as settings. `train` names the
        leaves that move (default: all weights; statistics never do); `x` replaces the inputs; with
        `steps`, `start` is the number of mini-batches each client has seen before, or all have
        (default: `steps` a round). The loss is part of the round's training loss if `report`."""
        moving = self._moving(params, train)
        if not moving:
            return Trained(dict(params), 0 * self.sizes, 0 * self.sizes)
        if isinstance(settings["lr"], PerClient):
            settings["lr"] = self.each(settings["lr"])
        for value in settings.values():  # what remains decides the steps of the whole stack
            if isinstance(value, PerClient):
                raise Apart(value.names)
        how = Sgd(**settings)
        if start is None:  # every round goes on where the one before stopped
            start = self.round * how.steps
        if isinstance(start, int):
            start = torch.full((len(self.ids),), start)
        done = self._sgd(loss, params, how, moving, tuple(extra), x, coupled, start)
        if report:
            self.reported[how.purpose] = done.loss
        return done

    def _moving(self, params: Tree, train: Iterable[str] | None) -> list[str]:
        names = self.net.weights if train is None else train
        return [n for n in names if n in params and n not in self.net.stats]

    @abstractmethod
    def _sgd(
        self,
        loss: Loss,
        params: Tree,
        how: Sgd,
        moving: list[str],
        extra: tuple[Any, ...],
        x: Rows | None,
        coupled: Coupled,
        start: Tensor,
    ) -> Trained: ...

    def grad(
        self,
        loss: Loss,
        params: Tree,
        *,
        train: Iterable[str] | None = None,
        extra: Sequence[Any] = (),
        training: bool = False,
    ) -> tuple[Tree, Tensor, Tree]:
        """Gradient of the mean loss over the whole data, the loss `[K]`, and `params` with
        statistics updated if `training` (then the data is one batch, dropout on)."""
        moving = self._moving(params, train)
        if not moving:
            return {}, torch.zeros_like(self.sizes), dict(params)
        return self._grad(loss, params, moving, tuple(extra), training)

    @abstractmethod
    def _grad(
        self,
        loss: Loss,
        params: Tree,
        moving: list[str],
        extra: tuple[Any, ...],
        training: bool,
    ) -> tuple[Tree, Tensor, Tree]: ...

    @abstractmethod
    def squared_grad(
        self,
        loss: Loss,
        params: Tree,
        *,
        batch_size: int | Literal["full"] = 32,
        order: Order = "fixed",
        drop_last: bool = False,
        per_sample: bool = False,
        extra: Sequence[Any] = (),
    ) -> tuple[Tensor, Tensor]:
        """`[K]`: sum over batches (or samples) of the squared norm of the gradient over all
        weights, and how many there were."""

    @abstractmethod
    def forward(self, fn: Loss, params: Tree, *, extra: Sequence[Any] = ()) -> Rows:
        """`fn(net, params, x, y, *extra)` on every sample, without gradients or dropout."""

    @abstractmethod
    def class_mean(self, rows: Rows, **batches: Any) -> Tensor:
        """`[K, classes, ...]`: mean of the rows of each class; zero for classes without samples.
        `batches` (fields of `Plan`): only over the samples these batches hold."""

    def rows(self, values: Tensor) -> Rows:
        """`values`, one per training sample, clients one after the other."""
        return Rows(values)

    def each(self, value: float | PerClient) -> Tensor:
        """`[K]`: a hyperparameter, one value per client; in a sweep they may differ."""
        if isinstance(value, PerClient):
            return value.values[self.ids].to(self.device, self.dtype)
        return torch.full_like(self.sizes, value)

    def uniform(self, shape: Sequence[int], purpose: str) -> Tensor:
        """`[K, *shape]` uniform in [0, 1), keyed by client."""
        draws = [rng.keyed(seed, purpose, i).random(tuple(shape)) for seed, i in self.keys]
        return torch.as_tensor(np.stack(draws), dtype=self.dtype, device=self.device)

    def log(self, **values: Tensor) -> None:
        """Show one value per client for this round."""
        self.logs |= {name: value.detach() for name, value in values.items()}

    def __init__(
        self,
        net: Net,
        round: int,
        ids: list[int],
        keys: list[tuple[int, int]],
        sizes: Tensor,
        counts: Tensor,
    ):
        self.net, self.round, self.ids = net, round, ids
        self.keys = keys  # of the clients' randomness: (seed, client)
        self.sizes, self.counts = sizes, counts
        self.device, self.dtype = sizes.device, sizes.dtype
        self.logs: Tree = {}
        self.samples_seen = np.zeros(len(ids), dtype=np.int64)
        self.reported: dict[str, Tensor] = {}  # training loss [K] by purpose, for the run
