"""What a simulation asks an engine to compute.

A round is a generator: it yields the next task, is sent the result, and returns the round. So an
engine can work for one simulation, or do the same task of several in one wider stack
(`side_by_side.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from idiolect.core import record, tree
from idiolect.core.local import Local
from idiolect.core.method import Method, SgdMethod, cross_entropy
from idiolect.core.tree import Record, Tree
from idiolect.engine.engine import Engine
from idiolect.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Task(ABC):
    """Something to be done for clients `ids`, given records that have a row per client."""

    ids: list[int]
    when: Any  # the round, or the part of the data: the same for tasks that are done together
    records: tuple[Record, ...]

    @abstractmethod
    def do(self, method: Method, engine: Engine) -> Any: ...

    @property
    def like(self) -> Any:
        """What tasks that are done together have in common."""
        return type(self), self.when, *map(_shapes, self.records)

    @property
    def nbytes(self) -> int:
        """Of what it is given, laid out client by client."""
        return sum(map(tree.nbytes, self.records))

    def join(self, tasks: Sequence[Task], ids: list[int]) -> Task:
        """One task for all their clients, who are called `ids` there."""
        parts = zip(*(task.records for task in tasks), strict=True)
        return replace(self, ids=ids, records=tuple(tree.join(list(part)) for part in parts))

    @staticmethod
    def cut(done: Any, first: int, last: int) -> Any:
        """The part of the result that is about clients first..last-1."""
        return record.select(done, slice(first, last))


@dataclass
class Fitted:
    """What clients' work with their data produced."""

    up: Record
    mine: Record
    trained: Tree  # the models right after the work
    samples: Tensor  # [K] visited in training, counting every epoch
    steps: Tensor  # [K] gradient steps taken
    train_loss: Tensor  # [K]
    logs: Tree
    kept: Record = field(default_factory=dict)  # what optimizers remember, private as `mine`


class Fit(Task):
    """Local work of a round, from what clients are sent and what they have: `mine`, and what their
    optimizers remember, if they do."""

    def do(self, method: Method, engine: Engine) -> Fitted:
        def work(local: Local, *records: Record) -> Record:
            up, mine = self.call(method, local, *records)
            facts: Record = {
                "samples": torch.from_numpy(local.samples_seen),
                "steps": torch.from_numpy(local.steps_taken),
                "loss": local.train_loss,
                "logs": local.logs,
            }
            return {"up": up, "mine": mine, "facts": facts, "kept": local.kept}

        batch_size: Any = getattr(method, "batch_size", "full")
        done = engine.run(self.ids, self.when, work, *self.records, batch_size=batch_size)
        up, mine, facts = done["up"], done["mine"], done["facts"]
        # Made from what every rank has now: sending the models on top would double the traffic.
        trained = method.trained(self.records[0], up, mine)
        counted = facts["samples"], facts["steps"]
        return Fitted(up, mine, trained, *counted, facts["loss"], facts["logs"], done["kept"])

    def call(self, method: Method, local: Local, *records: Record) -> tuple[Record, Record]:
        down, mine, *kept = records
        local.remembered = kept[0] if kept else {}
        done = method.fit(down, mine, local)
        if not isinstance(done, tuple) or [isinstance(part, dict) for part in done] != [True] * 2:
            raise UserError(f"{method.name}.fit must return two dicts: what is sent, what is kept")
        return done

    @staticmethod
    def cut(done: Fitted, first: int, last: int) -> Fitted:
        return Fitted(**record.select(vars(done), slice(first, last)))


class Rejoin(Fit):
    """Late work reaches the server: the clients see what it would send them now."""

    def call(self, method: Method, local: Local, *records: Record) -> tuple[Record, Record]:
        down, mine, up = records
        return method.rejoin(down, mine, up, local)


class Adapt(Task):
    """What clients do with a delivered model before they predict."""

    def do(self, method: Method, engine: Engine) -> Tree:
        def adapt(local: Local, params: Tree) -> Record:
            return {"model": method.adapt(params, local)}

        batch_size: Any = getattr(method, "batch_size", "full")
        done = engine.run(self.ids, self.when, adapt, *self.records, batch_size=batch_size)
        return dict(done["model"])


class Score(Task):
    """Correct predictions and summed loss of clients' models on a part of their own samples."""

    def do(self, method: Method, engine: Engine) -> Record:
        correct, loss = engine.evaluate(self.records[0], self.ids, self.when)
        return {"correct": correct, "loss": loss}

    @property
    def like(self) -> Any:
        # One model for all clients is cheaper alone than copied for each of them.
        leaves = self.records[0].values()
        alone = len(self.ids) > 1 and all(x.stride(0) == 0 for x in leaves)
        return *super().like, id(self) if alone else None


class FisherTrace(Task):
    """Trace of the empirical Fisher information of clients' models: squared gradients summed over
    the mini-batches the method trains on, as FedAS has it."""

    def do(self, method: Method, engine: Engine) -> Record:
        batches = method.batches if isinstance(method, SgdMethod) else {"batch_size": "full"}

        def trace(local: Local, params: Tree) -> Record:
            total, _ = local.squared_grad(cross_entropy, params, **batches)
            return {"fisher": {"trace": total}}

        size: Any = batches["batch_size"]
        done = engine.run(self.ids, 0, trace, *self.records, batch_size=size)
        return dict(done["fisher"])


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


def first_state(
    method: Method, engine: Engine, common: Tree, own: Mapping[int, Tree], ids: list[int]
) -> Record:
    """What these clients keep at first: made from the common model, or from one of their own."""
    begin = tree.expand(common, len(ids))
    if own:
        rows = [own.get(i, common) for i in ids]
        begin = {n: torch.stack([r[n].to(engine.device) for r in rows]) for n in common}
    return engine.to_device(method.client_init(begin, engine.local(ids, 0)))


def _shapes(record: Record) -> tuple[tuple[str, torch.Size, torch.dtype], ...]:
    return tuple((n, x.shape[1:], x.dtype) for n, x in tree.leaves(record).items())
