"""What both engines share: the fit of a group of clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from idiolect.core import memory, tree
from idiolect.core.local import Local, Plan, Rows
from idiolect.core.method import Down, Method
from idiolect.core.net import Net
from idiolect.core.tree import Record, Tree
from idiolect.data import Federation
from idiolect.engine.ranks import CPU, Ranks
from idiolect.engine.samples import Data, Part, Window
from idiolect.engine.threads import Done, Nets

EVAL_BATCH = 512  # samples of the passes that are not training


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
        self._index = torch.empty(0)
        self._turn: int | None = -1  # of `data`, for which the index holds; None: for good
        labels = [data.train_labels(i) for i in ids]
        self.y_host = [y for y, _ in labels]
        self.offsets = [0, *torch.tensor(sizes).cumsum(0).tolist()]
        counts = torch.stack([each for _, each in labels])
        super().__init__(
            net,
            round,
            ids,
            keys,
            memory.sent(torch.tensor(sizes, dtype=data.dtype), data.device),
            memory.sent(counts, data.device),
        )

    @property
    def index(self) -> Tensor:
        """Where the clients' training samples lie on the device."""
        if self._turn is not None and self._turn != self.data.turn:
            self._index = self.data.here(self.index_host)
            self._turn = self.data.turn
        return self._index

    @index.setter
    def index(self, value: Tensor) -> None:
        self._index, self._turn = value, None

    def class_mean(self, rows: Rows, **batches: Any) -> Tensor:
        means, index = [], self.index
        for k in range(len(self.ids)):
            at: Any = slice(self.offsets[k], self.offsets[k + 1])
            if batches:
                table, sizes = Plan(**batches).table(self.y_host[k], *self.keys[k], self.round)
                held = np.concatenate([row[:n] for row, n in zip(table, sizes, strict=True)])
                at = memory.sent(torch.as_tensor(held + self.offsets[k]), self.device)
            y = self.data.y[index[at]]
            member = torch.nn.functional.one_hot(y, self.data.classes).to(rows.values.dtype)
            share = member / member.sum(0).clamp_min(1)
            means.append(tree.mix(share.T, {"": rows.values[at]})[""])
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
        away: bool = False,
    ):
        """`keys` gives the (seed, client) of each client's randomness where it is not the obvious
        one: several federations in one stack. `away`: samples stay in host memory until clients
        work on them."""
        self.data = (Window if away else Data)(federation, device, dtype)
        self.device, self.dtype = device, dtype
        self.keys = keys or [(seed, i) for i in range(federation.n_clients)]
        module = deepcopy(module).to(device, dtype)
        self.net = Net(module)
        self.train_net = Net(module, training=True)
        self.nets: Nets = (self.net, self.train_net)
        self.ranks = Ranks.current()
        self._widest: float = EVAL_BATCH  # samples of the largest batch
        self.chunks = memory.Chunks(memory.meter(device))

    @abstractmethod
    def groups(self, ids: Sequence[int]) -> Iterable[list[int]]:
        """Clients that compute together: neighbouring positions in `ids`. The work of one group is
        done when the next is asked for."""

    def guess(self, samples: int) -> float:
        """Bytes that one client with so many samples may need: some copies of the model and the
        activations of a batch, forward and backward."""
        return 10 * self._footprint[0] + 2 * self._footprint[1] * min(samples, self._widest)

    @cached_property
    def _footprint(self) -> tuple[int, float]:
        """Bytes of a model, and what one sample leaves for the backward pass: measured."""
        params = {n: v.detach().clone() for n, v in self.net.module.state_dict().items()}
        params = {n: params[n].requires_grad_(n in self.net.weights) for n in self.net.names}
        own = {v.untyped_storage().data_ptr() for v in params.values()}
        saved: dict[int, int] = {}

        def note(x: Tensor) -> Tensor:
            store = x.untyped_storage()
            saved[store.data_ptr()] = store.nbytes()
            return x

        x = self.data.inputs(self.data.here(torch.zeros(2, dtype=torch.int64)))
        with torch.enable_grad(), saved_tensors_hooks(note, lambda x: x):
            self.net(params, x)
        return tree.nbytes(params), sum(n for at, n in saved.items() if at not in own) / 2

    @abstractmethod
    def local(self, ids: list[int], round: int, nets: Nets | None = None) -> DataLocal:
        """The handle of these clients on their data; `nets` are those of a thread."""

    @abstractmethod
    def _evaluate(self, params: Tree, ids: Sequence[int], part: Part) -> tuple[Tensor, Tensor]:
        """`evaluate` on this rank."""

    def to_device(self, record: Record) -> Record:
        return tree.each(lambda x: memory.sent(x, self.device), record)

    def each_group(
        self, ids: Sequence[int], round: int, work: Callable[..., Done], *records: Record
    ) -> list[Done]:
        """`work(local, *records)` of every group of clients: their handle on the data, and their
        part of each record."""
        return [
            work(*self._given(group, ids, round, records, self.nets)) for group in self.groups(ids)
        ]

    def _given(
        self,
        group: list[int],
        ids: Sequence[int],
        round: int,
        records: Sequence[Record],
        nets: Nets,
    ) -> tuple[Any, ...]:
        pick = _picker(group, len(ids))
        local = self.local([ids[g] for g in group], round, nets)
        return local, *(tree.each(pick, record) for record in records)

    # --- on the rank each client falls to ---

    def spread(
        self, ids: Sequence[int], round: int, work: Callable[..., Record], *records: Record
    ) -> Record:
        """`work(local, *records)` of every group of clients gives a record of records; they are
        returned as one, on every rank."""

        def own_work(own: list[int]) -> Record:
            given = (tree.each(_picker(own, len(ids)), record) for record in records)
            return tree.join(self.each_group([ids[k] for k in own], round, work, *given))

        return self.ranks.each(self._sizes(ids, "train"), own_work, self.device)

    def evaluate(self, params: Tree, ids: Sequence[int], part: Part) -> tuple[Tensor, Tensor]:
        """Correct predictions and summed loss of each client on its own part, `[K]`; a GPU may
        still be computing them."""
        sizes = self._sizes(ids, part)

        def test(own: list[int]) -> Record:
            score = (torch.zeros(len(own)), torch.zeros(len(own)))
            if any(sizes[k] for k in own):
                given = tree.each(_picker(own, len(ids)), params)
                score = self._evaluate(given, [ids[k] for k in own], part)
            return {"score": {"correct": score[0].double(), "loss": score[1].double()}}

        score = self.ranks.each(sizes, test, CPU)["score"]
        return score["correct"], score["loss"]

    def fit(
        self, method: Method, down: Down, mine: Record, ids: Sequence[int], round: int
    ) -> Fitted:
        """Local work of clients `ids`."""
        if self.ranks.world == 1:
            return self._fit(method, down, mine, ids, round)

        def train(own: list[int]) -> Record:
            pick = _picker(own, len(ids))
            sent = Down(down.shared, tree.each(pick, down.each))
            done = self._fit(method, sent, tree.each(pick, mine), [ids[k] for k in own], round)
            facts = {"samples": torch.from_numpy(done.samples), "loss": done.train_loss}
            return {"up": done.up, "mine": done.mine, "facts": facts | {"logs": done.logs}}

        done = self.ranks.each(self._sizes(ids, "train"), train, self.device)
        up, private, facts = done["up"], done["mine"], done["facts"]
        # From what came in: the models need not be sent on top.
        trained = method.trained(down.stacked(len(ids)), up, private)
        samples = facts["samples"].cpu().numpy()
        return Fitted(up, private, trained, samples, facts["loss"], facts["logs"])

    def _sizes(self, ids: Sequence[int], part: Part) -> list[int]:
        return [len(self.data.parts[part][i]) for i in ids]

    def _fit(
        self, method: Method, down: Down, mine: Record, ids: Sequence[int], round: int
    ) -> Fitted:
        """`fit` on this rank."""
        batch: Any = getattr(method, "batch_size", "full")
        self._widest = float("inf") if batch == "full" else max(batch, EVAL_BATCH)

        def train(local: DataLocal, seen: Record, state: Record) -> tuple[Any, ...]:
            up, state = method.fit(seen, state, local)
            return up, state, method.trained(seen, up, state), local

        records = (down.stacked(len(ids)), mine)
        done = self.each_group(ids, round, train, *records)
        losses = [sum(d[3].reported.values(), start=0 * d[3].sizes) for d in done]
        counts = [max(1, len(d[3].reported)) for d in done]
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
    # One row that all clients share stays one.
    return lambda x: x[: len(group)] if x.stride(0) == 0 else x[chosen.to(x.device)]
