"""What a simulation asks an engine to compute.

A round is a generator: it yields the next task, is sent the result, and returns the round. So an
engine can work for one simulation, or do the same task of several in one wider stack
(`side_by_side.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.local import Local
from idiolect.core.method import Down, Method
from idiolect.core.tree import Record, Tree
from idiolect.engine import rows
from idiolect.engine.engine import Engine
from idiolect.engine.samples import Part

T = TypeVar("T")


@dataclass(frozen=True)
class Task(ABC):
    """Something to be done for clients `ids`."""

    ids: list[int]

    @abstractmethod
    def do(self, method: Method, engine: Engine) -> Any: ...

    @property
    @abstractmethod
    def like(self) -> Any:
        """What tasks that are done together have in common."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Of what it is given, laid out client by client."""

    @staticmethod
    @abstractmethod
    def join(tasks: Sequence[Any], ids: list[int]) -> Task:
        """One task for all their clients, who are called `ids` there."""

    @staticmethod
    @abstractmethod
    def cut(done: Any, first: int, last: int) -> Any:
        """The part of the result that is about clients first..last-1."""


@dataclass(frozen=True)
class ClientWork(Task):
    """Work of clients with their data, on records that have a row per client."""

    round: int

    @property
    @abstractmethod
    def records(self) -> tuple[Record, ...]: ...

    @property
    def like(self) -> Any:
        return type(self), self.round, *map(_shapes, self.records)

    @property
    def nbytes(self) -> int:
        return sum(map(tree.nbytes, self.records))

    @classmethod
    def join(cls, tasks: Sequence[Any], ids: list[int]) -> Task:
        joined = [tree.join(list(parts)) for parts in zip(*(t.records for t in tasks), strict=True)]
        return cls.of_records(ids, tasks[0].round, *joined)

    @classmethod
    @abstractmethod
    def of_records(cls, ids: list[int], round: int, *records: Any) -> Task:
        """The work whose `records` these are."""

    @staticmethod
    def cut(done: Any, first: int, last: int) -> Any:
        return type(done)(**rows.select(vars(done), slice(first, last)))


@dataclass
class Rejoined:
    """What late clients send, and have, after they have seen the present."""

    up: Record
    mine: Record
    trained: Tree  # the models right after the work


@dataclass
class Fitted(Rejoined):
    """What the local work of a round produced."""

    samples: Tensor  # [K] visited in training, counting every epoch
    train_loss: Tensor  # [K]
    logs: Tree


@dataclass(frozen=True)
class Fit(ClientWork):
    """Local work of a round: what the clients are sent, and what they have."""

    down: Down
    mine: Record

    @property
    def records(self) -> tuple[Record, ...]:
        return self.down.stacked(len(self.ids)), self.mine

    @classmethod
    def of_records(cls, ids: list[int], round: int, *records: Any) -> Fit:
        return cls(ids, round, Down(each=records[0]), records[1])

    def do(self, method: Method, engine: Engine) -> Fitted:
        def fit(local: Local, down: Record, mine: Record) -> Record:
            up, mine = method.fit(down, mine, local)
            facts = {"samples": torch.from_numpy(local.samples_seen), "loss": local.train_loss}
            return {"up": up, "mine": mine, "facts": facts | {"logs": local.logs}}

        seen, mine = self.records
        done = engine.run(self.ids, self.round, fit, seen, mine, batch_size=_batch_size(method))
        up, mine, facts = done["up"], done["mine"], done["facts"]
        # Made from what every rank has now: sending the models on top would double the traffic.
        trained = method.trained(seen, up, mine)
        return Fitted(up, mine, trained, facts["samples"], facts["loss"], facts["logs"])


@dataclass(frozen=True)
class Rejoin(ClientWork):
    """Late work reaches the server: the clients see what it would send them now."""

    down: Down
    mine: Record
    up: Record

    @property
    def records(self) -> tuple[Record, ...]:
        return self.down.stacked(len(self.ids)), self.mine, self.up

    @classmethod
    def of_records(cls, ids: list[int], round: int, *records: Any) -> Rejoin:
        return cls(ids, round, Down(each=records[0]), *records[1:])

    def do(self, method: Method, engine: Engine) -> Rejoined:
        def rejoin(local: Local, down: Record, mine: Record, up: Record) -> Record:
            up, mine = method.rejoin(down, mine, up, local)
            return {"up": up, "mine": mine}

        given, batch_size = self.records, _batch_size(method)
        done = engine.run(self.ids, self.round, rejoin, *given, batch_size=batch_size)
        up, mine = done["up"], done["mine"]
        return Rejoined(up, mine, method.trained(given[0], up, mine))


@dataclass(frozen=True)
class Adapt(ClientWork):
    """What clients do with a delivered model before they predict."""

    params: Tree

    @property
    def records(self) -> tuple[Record, ...]:
        return (self.params,)

    @classmethod
    def of_records(cls, ids: list[int], round: int, *records: Any) -> Adapt:
        return cls(ids, round, *records)

    def do(self, method: Method, engine: Engine) -> Tree:
        def adapt(local: Local, params: Tree) -> Record:
            return {"model": method.adapt(params, local)}

        batch_size = _batch_size(method)
        done = engine.run(self.ids, self.round, adapt, self.params, batch_size=batch_size)
        return dict(done["model"])

    @staticmethod
    def cut(done: Tree, first: int, last: int) -> Tree:
        return dict(rows.select(done, slice(first, last)))


@dataclass(frozen=True)
class Score(Task):
    """Correct predictions and summed loss of clients' models on their own samples, `[K]` each."""

    part: Part
    params: Tree

    def do(self, method: Method, engine: Engine) -> tuple[Tensor, Tensor]:
        return engine.evaluate(self.params, self.ids, self.part)

    @property
    def like(self) -> Any:
        # One model for all clients is cheaper alone than copied for each of them.
        alone = all(v.stride(0) == 0 for v in self.params.values()) and len(self.ids) > 1
        return Score, self.part, _shapes(self.params), id(self) if alone else None

    @property
    def nbytes(self) -> int:
        return tree.nbytes(self.params)

    @staticmethod
    def join(tasks: Sequence[Score], ids: list[int]) -> Score:
        return Score(ids, tasks[0].part, tree.join([t.params for t in tasks]))

    @staticmethod
    def cut(done: tuple[Tensor, Tensor], first: int, last: int) -> tuple[Tensor, Tensor]:
        return done[0][first:last], done[1][first:last]


Asking = Generator[Task, Any, T]


def alone(asking: Asking[T], method: Method, engine: Engine) -> T:
    """One simulation's tasks, done as they come."""
    result = None
    while True:
        try:
            task = asking.send(result)
        except StopIteration as end:
            done: T = end.value
            return done
        result = task.do(method, engine)


def together(
    askings: Sequence[Asking[T]], do: Callable[[dict[int, Task]], dict[int, Any]]
) -> list[T]:
    """Several simulations' tasks: `do` sees the task that each waits for and answers some."""
    waiting: dict[int, Task] = {}
    done: dict[int, T] = {}
    answers: dict[int, Any] = dict.fromkeys(range(len(askings)))
    while answers:
        for k, answer in answers.items():
            waiting.pop(k, None)
            try:
                waiting[k] = askings[k].send(answer)
            except StopIteration as end:
                done[k] = end.value
        answers = do(waiting) if waiting else {}
    return [done[k] for k in range(len(askings))]


def _batch_size(method: Method) -> Any:
    return getattr(method, "batch_size", "full")


def _shapes(record: Record) -> tuple[tuple[str, torch.Size, torch.dtype], ...]:
    return tuple((n, x.shape[1:], x.dtype) for n, x in tree.leaves(record).items())
