"""What clients can do with their data. Methods see only this; the engines implement it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from idiolect.core import record, rng, tree
from idiolect.core.batches import BatchPlan, SgdSettings
from idiolect.core.net import Net
from idiolect.core.per_client import Apart, PerClient
from idiolect.core.record import Record, Rows, Tree

Loss = Callable[..., Tensor]
Coupled = bool | Literal["filled"]


@dataclass(frozen=True)
class Objective:
    """What local work minimises: a loss, the leaves it moves, and what the loss sees besides."""

    loss: Loss
    moving: list[str]
    extra: tuple[Any, ...] = ()
    x: Rows | None = None  # inputs that replace the samples'
    coupled: Coupled = False
    pull: tuple[Tree, Tensor] | tuple[()] = ()  # to these leaves, how strongly [K]


@dataclass(frozen=True)
class Trained:
    """What local SGD did, for K clients."""

    params: Tree
    loss: Tensor  # [K] mean over the samples visited
    steps: Tensor  # [K] steps taken
    memory: Tree = field(default_factory=dict)  # of the optimizer (core/optimizer.py), if kept


class Local(ABC):
    """The handle of K clients on their own data.

    A `loss(net, params, x, y, *extra)` is written for ONE client and returns one value per sample;
    the engine makes it K clients wide and takes the mean. A loss that ties the samples of a batch
    together returns a scalar and is passed with `coupled=True`. If it ignores samples whose label
    is -1, pass `coupled="filled"`: short batches are then filled up with such samples, which is
    faster. `extra` holds trees or tensors with a leading client axis, or `Rows` with one value per
    sample.
    """

    lengths: list[int]  # [K] training samples
    sizes: Tensor  # the same on the device
    counts: Tensor  # [K, classes] training samples of each class

    def __init__(
        self,
        net: Net,
        round: int,
        ids: list[int],
        keys: list[tuple[int, int]],
        device: torch.device,
        dtype: torch.dtype,
    ):
        self.net, self.round, self.ids = net, round, ids
        self.keys = keys  # (seed, client): what each client's randomness is keyed by
        self.device, self.dtype = device, dtype
        self.logs: Tree = {}
        self.samples_seen = np.zeros(len(ids), dtype=np.int64)  # [K] in training, with repeats
        self.steps_taken = np.zeros(len(ids), dtype=np.int64)  # [K] gradient steps
        self.reported: dict[str, Tensor] = {}  # training loss [K] by purpose
        self.remembered: Record = {}  # what optimizers kept of the clients' last round, by call
        self.kept: Record = {}  # the same after this round
        self._calls: dict[str, int] = {}

    def sgd(
        self,
        loss: Loss,
        params: Tree,
        *,
        train: Iterable[str] | None = None,
        extra: Sequence[Any] = (),
        x: Rows | None = None,
        coupled: Coupled = False,
        pull: tuple[Tree, Tensor] | tuple[()] = (),
        start: Tensor | int | None = None,
        only: Tensor | None = None,
        report: bool = True,
        **settings: Any,
    ) -> Trained:
        """Mini-batch SGD from `params`; `settings` are the fields of `SgdSettings`. `train` names
        the leaves that move (default: all weights; statistics never do). `x` replaces the inputs.
        `pull=(anchor, strength)` adds `strength / 2 |w - anchor|^2` over the leaves of the anchor
        to what is minimised: by formula, so that it costs little; losses are told without it.
        With `steps`, `start` is the number of mini-batches seen before, one for all clients or one
        each (default: `steps` a round). `only` `[K]` says whose training it is: the others keep
        `params`, and no work is counted of them. If `report`, the loss counts in the round's
        training loss."""
        goal = Objective(loss, self._moving(params, train), tuple(extra), x, coupled, pull)
        if not goal.moving:
            return Trained(dict(params), 0 * self.sizes, 0 * self.sizes)
        if isinstance(settings["lr"], PerClient):
            settings["lr"] = self.each(settings["lr"])
        for value in settings.values():  # all others decide the steps of the whole stack
            if isinstance(value, PerClient):
                raise Apart(value.names)
        how = SgdSettings(**settings)
        if start is None:  # every round goes on where the one before stopped
            start = self.round * how.steps
        if isinstance(start, int):
            start = torch.full((len(self.ids),), start)
        call = self._call(how.purpose)
        memory = record.leaves(self.remembered.get(call, {})) if how.keep else {}
        work = self.samples_seen.copy(), self.steps_taken.copy()
        done = self._sgd(goal, params, how, start, memory)
        if only is not None:
            rest = ~only.cpu().numpy()
            self.samples_seen[rest], self.steps_taken[rest] = (count[rest] for count in work)
            before = memory or tree.zeros_like(done.memory)
            done = replace(
                done,
                params=tree.where(only, done.params, params),
                memory=tree.where(only, done.memory, before),
            )
        if how.keep and done.memory:
            self.kept[call] = record.nest(done.memory)
        if report:
            self.reported[how.purpose] = done.loss
        return done

    def _call(self, purpose: str) -> str:
        """A name for a call of `sgd` that is the same in every round: its purpose, with a number
        from the second on (a method may train two models)."""
        count = self._calls[purpose] = self._calls.get(purpose, 0) + 1
        return purpose if count == 1 else f"{purpose}.{count}"

    def _moving(self, params: Tree, train: Iterable[str] | None) -> list[str]:
        names = self.net.weights if train is None else train
        return [n for n in names if n in params and n not in self.net.stats]

    @abstractmethod
    def _sgd(
        self, goal: Objective, params: Tree, how: SgdSettings, start: Tensor, memory: Tree
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
        goal = Objective(loss, self._moving(params, train), tuple(extra))
        if not goal.moving:
            return {}, torch.zeros_like(self.sizes), dict(params)
        done = self._grad(goal, params, training)
        if training and not self.reported:  # the only training there is
            self.reported["grad"] = done[1]
        return done

    @abstractmethod
    def _grad(self, goal: Objective, params: Tree, training: bool) -> tuple[Tree, Tensor, Tree]: ...

    def squared_grad(
        self,
        loss: Loss,
        params: Tree,
        *,
        per_sample: bool = False,
        extra: Sequence[Any] = (),
        **batches: Any,
    ) -> tuple[Tensor, Tensor]:
        """`[K]`: sum over batches (or samples) of the squared norm of the gradient over all
        weights, and how many there were. `batches` are fields of `BatchPlan`."""
        goal = Objective(loss, self._moving(params, None), tuple(extra))
        plan = BatchPlan(**{"order": "fixed", "purpose": "trace"} | batches)
        return self._squared_grad(goal, params, plan, per_sample)

    @abstractmethod
    def _squared_grad(
        self, goal: Objective, params: Tree, plan: BatchPlan, per_sample: bool
    ) -> tuple[Tensor, Tensor]: ...

    @abstractmethod
    def forward(self, fn: Loss, params: Tree, *, extra: Sequence[Any] = ()) -> Rows:
        """`fn(net, params, x, y, *extra)` on every sample, without gradients or dropout."""

    @abstractmethod
    def class_mean(self, rows: Rows, **batches: Any) -> Tensor:
        """`[K, classes, ...]`: mean of the rows of each class; zero for classes without samples.
        `batches` (fields of `BatchPlan`): only over the samples these batches hold."""

    @abstractmethod
    def part(self, positions: Sequence[Tensor]) -> Self:
        """The same clients with some of their training samples: those at `positions[k]` of client
        k, one at least. Its work, logs and losses count as work of these clients."""

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

    @property
    def train_loss(self) -> Tensor:
        """`[K]`: mean of the losses that `sgd` reported, else that of a gradient step; zero where
        there was neither."""
        return sum(self.reported.values(), start=0 * self.sizes) / max(1, len(self.reported))

    def log(self, **values: Tensor) -> None:
        """Show one value per client for this round."""
        self.logs |= {name: value.detach() for name, value in values.items()}
