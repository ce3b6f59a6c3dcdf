"""What a simulation asks an engine to compute.

A round is a generator: it yields the next task, is sent the result, and returns the round. So an
engine can work for one simulation, or do the same task of several in one wider stack (`sweep`).
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
from idiolect.engine.engine import Engine, Fitted
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
class Fit(Task):
    """Local work of a round: what the clients are sent, and what they have."""

    round: int
    down: Down
    mine: Record

    def do(self, method: Method, engine: Engine) -> Fitted:
        return engine.fit(method, self.down, self.mine, self.ids, self.round)

    @property
    def like(self) -> Any:
        return Fit, self.round, _shapes(self.down.stacked(1)), _shapes(self.mine)

    @property
    def nbytes(self) -> int:
        return tree.nbytes(self.down.stacked(len(self.ids))) + tree.nbytes(self.mine)

    @staticmethod
    def join(tasks: Sequence[Fit], ids: list[int]) -> Fit:
        down = Down(each=tree.join([t.down.stacked(len(t.ids)) for t in tasks]))
        return Fit(ids, tasks[0].round, down, tree.join([t.mine for t in tasks]))

    @staticmethod
    def cut(done: Fitted, first: int, last: int) -> Fitted:
        return done.rows(first, last)


@dataclass(frozen=True)
class Adapt(Task):
    """What clients do with a delivered model before they predict."""

    round: int
    params: Tree

    def do(self, method: Method, engine: Engine) -> Tree:
        def adapt(local: Local, params: Tree) -> Record:
            return {"model": method.adapt(params, local)}

        return dict(engine.spread(self.ids, self.round, adapt, self.params)["model"])

    @property
    def like(self) -> Any:
        return Adapt, self.round, _shapes(self.params)

    @property
    def nbytes(self) -> int:
        return tree.nbytes(self.params)

    @staticmethod
    def join(tasks: Sequence[Adapt], ids: list[int]) -> Adapt:
        return Adapt(ids, tasks[0].round, tree.join([t.params for t in tasks]))

    @staticmethod
    def cut(done: Tree, first: int, last: int) -> Tree:
        return tree.each(lambda x: x[first:last], done)


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
    return together([asking], lambda waiting: {0: waiting[0].do(method, engine)})[0]


def together(
    askings: Sequence[Asking[T]], do: Callable[[dict[int, Task]], dict[int, Any]]
) -> list[T]:
    """Several at once: `do` sees the task each waits for and answers some of them."""
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


def _shapes(record: Record) -> tuple[tuple[str, torch.Size, torch.dtype], ...]:
    return tuple((n, x.shape[1:], x.dtype) for n, x in tree.leaves(record).items())
