"""Several simulations side by side: seeds of a method, and values of its hyperparameters.

Every simulation keeps its own server, schedule and metrics; what it asks an engine to compute is
done for all of them in one wider stack. Randomness is keyed by (seed, client), so the numbers are
those of separate runs. Methods may differ in numbers (floats): local work is done by one method
object that has a `PerClient` there. Where it turns out that it cannot be (`Apart`), or messages
have different shapes, simulations with different values are computed one after the other.

Simulations that differ only in what clients do before they predict (`Method.adapt_only`, settings
of fine-tuning) train once: one of them does the local work, the others are given its results.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

import torch

from idiolect.core import devices, tree
from idiolect.core.method import Method
from idiolect.core.per_client import Apart, PerClient
from idiolect.core.tree import Tree
from idiolect.data import Federation
from idiolect.engine import memory
from idiolect.engine.engine import Engine
from idiolect.engine.ranks import Ranks
from idiolect.engine.samples import SampleWindow
from idiolect.simulation.outcome import Round
from idiolect.simulation.requests import Adapt, FisherTrace, Fit, Rejoin, Score, Task, together
from idiolect.simulation.simulation import Simulation

SCORED_TOGETHER = 512  # models on the device at once while testing
ORDER = (Fit, Rejoin, Adapt, FisherTrace, Score)  # whoever is behind catches up first


class Sweep:
    """Simulations that take their rounds together."""

    def __init__(self, simulations: Sequence[Simulation]):
        self.simulations = list(simulations)
        self.apart = self._adapted_apart()  # hyperparameters that need their own stacks
        self._trained_by = [self._first_like(k) for k in range(len(self.simulations))]
        self._sizes = [one.federation.n_clients for one in self.simulations]
        self._offsets = [sum(self._sizes[:k]) for k in range(len(self._sizes))]

    @cached_property
    def engine(self) -> Engine:
        """Of all clients of all simulations."""
        first = self.simulations[0]
        made = type(first.engine)(
            _merged([one.federation for one in self.simulations]),
            first.engine.net.module,
            seed=first.seed,
            device=first.device,
            dtype=first.dtype,
            keys=[key for one in self.simulations for key in one.engine.keys],
            away=isinstance(first.engine.samples, SampleWindow),
            products=first.engine.products,
        )
        made.learn_by(first.engine.own_loss, first.engine.augment)
        return made

    @staticmethod
    def kind(simulation: Simulation) -> Any:
        """What simulations in one stack have in common."""
        method, federation = simulation.method, simulation.federation
        # That a number cannot differ in a stack is found out by the rank that meets it, and the
        # others would wait for it: several ranks join only equal methods.
        equal = Ranks.current().world > 1
        free = frozenset() if equal else type(method).adapt_only
        fixed = [
            v for n, v in vars(method).items() if n not in free and (equal or type(v) is not float)
        ]
        alone = simulation.engine.name != "stacked"
        shapes = [(n, v.shape, v.dtype) for n, v in simulation.start_tree.items()]
        when = (simulation.round, simulation.tested)
        norm = (federation.mean, federation.std, federation.form)
        data = (federation.x.dtype, *norm, simulation.device)
        engine = simulation.engine
        learns = (federation.task, engine.own_loss, engine.augment)
        how = (engine.products, *learns, id(simulation) if alone else None)
        base = _frozen_values(simulation.frozen_part())
        return (type(method), *fixed, *shapes, *when, *data, *how, base)

    def start(self) -> list[Round]:
        """Round 0 of every simulation."""
        return self._together([one.starting() for one in self.simulations])

    def step(self) -> list[Round]:
        """One round of every simulation."""
        return self._together([one.stepping() for one in self.simulations])

    def _together(self, askings: Sequence[Any]) -> list[Round]:
        began = time.perf_counter()
        done = [one.settle() for one in together(askings, self._do)]
        # The work was shared: each round is charged its part.
        n, whole = len(done), time.perf_counter() - began
        return [replace(r, seconds=whole / n, seconds_eval=r.seconds_eval / n) for r in done]

    def _do(self, waiting: dict[int, Task]) -> dict[int, Any]:
        """The tasks of the kind that comes first, in as few stacks as possible."""
        kind = next(kind for kind in ORDER if any(type(t) is kind for t in waiting.values()))
        tasks = {k: waiting[k] for k in waiting if type(waiting[k]) is kind}
        twins = {k: self._trained_by[k] for k in tasks if self._is_twin(k, tasks)}
        tasks = {k: task for k, task in tasks.items() if k not in twins}
        while True:
            try:
                done: dict[int, Any] = {}
                for members in self._fitting(self._stacks(tasks), tasks):
                    done |= self._joint({k: tasks[k] for k in members})
                return done | {k: _copied(done[first]) for k, first in twins.items()}
            except Apart as found:
                self.apart |= found.names

    def _adapted_apart(self) -> frozenset[str]:
        """Settings of `adapt` that are no numbers and differ: whole numbers, words."""
        methods = [one.method for one in self.simulations]
        values = {n: [getattr(m, n) for m in methods] for n in type(methods[0]).adapt_only}
        mixed = (n for n, v in values.items() if any(type(x) is not float for x in v))
        return frozenset(n for n in mixed if any(x != values[n][0] for x in values[n]))

    def _first_like(self, k: int) -> int:
        """The first simulation that trains exactly as this one."""
        return next(
            j for j in range(k + 1) if j == k or _alike(*(self.simulations[i] for i in (j, k)))
        )

    def _is_twin(self, k: int, tasks: dict[int, Task]) -> bool:
        first = self._trained_by[k]
        if first == k or first not in tasks or not isinstance(tasks[k], Fit):
            return False
        ours, theirs = tasks[k], tasks[first]
        return (ours.ids, ours.when) == (theirs.ids, theirs.when)

    def _stacks(self, tasks: dict[int, Task]) -> list[list[int]]:
        stacks: dict[Any, list[int]] = {}
        rows = 0
        for k, task in tasks.items():
            key = [task.like]
            if isinstance(task, Score):
                rows += len(task.ids)
                key.append(rows // SCORED_TOGETHER)
            else:
                own = self.simulations[k].method
                key += [getattr(own, name) for name in sorted(self.apart)]
            stacks.setdefault(tuple(key), []).append(k)
        return list(stacks.values())

    def _fitting(self, stacks: list[list[int]], tasks: dict[int, Task]) -> Iterator[list[int]]:
        """Stacks whose tasks can be laid side by side in memory; others are done one by one. What
        all clients of one run share, such as everybody's models, is there once per client then."""
        for members in stacks:
            needed = sum(tasks[k].nbytes for k in members)
            if len(members) > 1 and needed > memory.SHARE_FOR_UNMEASURED_WORK * devices.free_memory(
                self.engine.device
            ):
                yield from ([k] for k in members)
            else:
                yield members

    def _joint(self, tasks: dict[int, Task]) -> dict[int, Any]:
        if len(tasks) == 1:
            [(k, task)] = tasks.items()
            one = self.simulations[k]
            return {k: task.do(one.method, one.engine)}
        ids = [self._offsets[k] + i for k, task in tasks.items() for i in task.ids]
        first, member = next(iter(tasks.values())), next(iter(tasks))
        tested = isinstance(first, Score)  # whatever the methods: a model is a model
        method = self.simulations[member].method if tested else self._method(list(tasks))
        done = first.join(list(tasks.values()), ids).do(method, self.engine)
        cut, at = {}, 0
        for k, task in tasks.items():
            cut[k] = first.cut(done, at, at + len(task.ids))
            at += len(task.ids)
        return cut

    def _method(self, members: Sequence[int]) -> Method:
        """The method of these simulations, with a value per client where they differ."""
        everyone = [one.method for one in self.simulations]
        joint = copy(everyone[members[0]])
        for name in (f.name for f in fields(joint)):
            values = [getattr(method, name) for method in everyone]
            if any(values[k] != values[members[0]] for k in members):
                by_client = torch.tensor(values, dtype=torch.float64).repeat_interleave(
                    torch.tensor(self._sizes)
                )
                object.__setattr__(joint, name, PerClient(frozenset({name}), by_client))
        return joint


def _merged(federations: Sequence[Federation]) -> Federation:
    """All clients of all federations over one table of samples, kept once where it is the same."""
    tables: list[Federation] = []
    starts: list[int] = []
    parts: dict[str, list[torch.Tensor]] = {"train": [], "val": [], "test": []}
    for one in federations:
        known = next((k for k, other in enumerate(tables) if _same_samples(one, other)), None)
        if known is None:
            known = len(tables)
            starts.append(sum(len(other.x) for other in tables))
            tables.append(one)
        for part, rows in parts.items():
            rows += [index + starts[known] for index in getattr(one, part)]
    return replace(
        federations[0],
        x=tables[0].x if len(tables) == 1 else torch.cat([one.x for one in tables]),
        y=tables[0].y if len(tables) == 1 else torch.cat([one.y for one in tables]),
        train=tuple(parts["train"]),
        val=tuple(parts["val"]),
        test=tuple(parts["test"]),
        names=(),
        unseen=(),
    )


def _frozen_values(part: Tree) -> str:
    """A digest of what all clients of a stack share: they compute in one module."""
    found = hashlib.blake2b(digest_size=16)
    for name, value in part.items():
        found.update(name.encode() + value.contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _alike(a: Simulation, b: Simulation) -> bool:
    """Whether two simulations train alike, whatever their clients do before they predict."""
    adapted = type(a.method).adapt_only
    if not adapted or type(a.method) is not type(b.method) or a.seed != b.seed:
        return False
    trains = [{n: v for n, v in vars(one.method).items() if n not in adapted} for one in (a, b)]
    own = a.clients_start or b.clients_start
    return not own and trains[0] == trains[1] and a.turns == b.turns and _same_start(a, b)


def _same_start(a: Simulation, b: Simulation) -> bool:
    ours, theirs = a.federation, b.federation
    if ours is not theirs:
        if ours.n_clients != theirs.n_clients or not _same_samples(ours, theirs):
            return False
        pairs = zip(ours.train, theirs.train, strict=True)
        if not all(torch.equal(x, y) for x, y in pairs):
            return False
    return all(torch.equal(v, b.start_tree[n]) for n, v in a.start_tree.items())


def _copied(fitted: Any) -> Any:
    return replace(fitted, **tree.each(torch.clone, vars(fitted)))


def _same_samples(a: Federation, b: Federation) -> bool:
    return a.x is b.x or (torch.equal(a.x, b.x) and torch.equal(a.y, b.y))
