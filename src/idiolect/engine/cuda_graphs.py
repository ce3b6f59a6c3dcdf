"""Steps of the stack as CUDA graphs: captured once per stack size, replayed without launches.

A graph reads and writes fixed buffers: the stack of models, the sample positions and weights of
all steps, and a step counter on the device that every replay advances, so a whole round is a
sequence of replays without a word from the host. As clients finish, the stack shrinks through a few
sizes; clients in a graph that have nothing to do in a step get weight zero, hence gradient zero.

Without a GPU the same programs run step by step, which is how they are tested.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.local import Rows
from idiolect.core.tree import Tree
from idiolect.engine.samples import Data
from idiolect.engine.steps import Step

if TYPE_CHECKING:
    from idiolect.engine.train import Work

WORTH = 4  # steps a round from which a capture pays
SHRINK, FINE = 0.8, 3  # neighbouring stack sizes: their ratio, and how close they are at least


class Graphs:
    """The captured steps of one engine."""

    def __init__(self, data: Data):
        self.data = data
        self.pool = torch.cuda.graph_pool_handle() if data.device.type == "cuda" else None
        self._programs: dict[Any, Program] = {}

    @property
    def programs(self) -> list[Program]:
        """What was captured so far."""
        return list(self._programs.values())

    def suits(self, work: Work) -> bool:
        """Enough steps. Full batches of what clients stored keep a GPU busy as they are."""
        return work.steps.count >= WORTH and not (work.x is not None and work.steps.same)

    def run(self, work: Work, stack: Tree, extra: tuple[Any, ...]) -> tuple[Tree, Tensor]:
        """Do the work; returns the stack and what it summed per client."""
        key = _signature(work, stack, extra)
        program = self._programs.get(key)
        if program is None or not program.fits(work):
            program = Program(self.data, self.pool, work, stack, extra)
            self._programs[key] = program
        return program.run(work, stack, extra)


def _signature(work: Work, stack: Tree, extra: tuple[Any, ...]) -> Any:
    """What a captured step depends on, besides the contents of its buffers."""
    shapes = tuple((n, tuple(v.shape)) for n, v in stack.items())
    more = tuple(_shapes(e) for e in (*extra, work.x))
    one_lr = not isinstance(work.lr, Tensor)  # for all clients
    what = (type(work), work.loss, tuple(work.moving), work.settings, one_lr)
    return (*what, work.coupled, work.steps.exact, work.steps.usual, shapes, more)


def _shapes(what: Any) -> Any:
    if isinstance(what, Rows):
        return what.values.shape[1:]
    if isinstance(what, dict):
        return tuple((n, v.shape) for n, v in what.items())
    return None if what is None else what.shape


class Program:
    """One kind of step on fixed buffers, captured for a few stack sizes."""

    def __init__(self, data: Data, pool: Any, work: Work, stack: Tree, extra: tuple[Any, ...]):
        device, steps = data.device, work.steps
        k = steps.clients
        self.data, self.pool = data, pool
        self.capacity = int(1.3 * steps.count) + 8
        self.samples = int(1.3 * len(work.local.index))
        self.place = data.place  # after the index: it may have moved the samples
        self.stack = {n: torch.empty_like(v) for n, v in stack.items()}
        self.extra = tuple(self._room(e) for e in extra)
        self.x = self._room(work.x)
        self.at = torch.zeros(self.capacity, k, steps.usual, dtype=torch.int64, device=device)
        self.weight = torch.zeros(self.at.shape, dtype=work.local.dtype, device=device)
        self.size = torch.zeros(self.capacity, k, dtype=work.local.dtype, device=device)
        self.index = torch.zeros(self.samples, dtype=torch.int64, device=device)
        self.now = torch.zeros(1, dtype=torch.int64, device=device)
        self.total = torch.zeros(k, dtype=work.local.dtype, device=device)
        self.sizes = stack_sizes(k, steps.count)
        self.captured: dict[int, torch.cuda.CUDAGraph | None] = {}  # by clients
        self.work = self._fixed(work)

    def _room(self, what: Any) -> Any:
        """Where such an argument will lie; rows of as many samples as the index has."""
        if isinstance(what, Rows):
            return Rows(what.values.new_empty(self.samples, *what.values.shape[1:]))
        if isinstance(what, dict):
            return {n: torch.empty_like(v) for n, v in what.items()}
        return None if what is None else torch.empty_like(what)

    def _fixed(self, work: Work) -> Work:
        """The work as the graphs see it: on the program's own buffers."""
        fixed = copy(work)
        fixed.local = copy(work.local)
        fixed.local.index, fixed.local.graphs = self.index, None
        fixed.x = self.x
        if isinstance(fixed.lr, Tensor):
            fixed.lr = torch.empty_like(fixed.lr)
        else:
            fixed.lr = torch.zeros((), dtype=work.local.dtype, device=work.local.device)
        fixed.velocity = {n: torch.zeros_like(v) for n, v in work.velocity_of(self.stack).items()}
        return fixed

    def fits(self, work: Work) -> bool:
        enough = work.steps.count <= self.capacity and len(work.local.index) <= self.samples
        return enough and self.place == self.data.place

    def run(self, work: Work, stack: Tree, extra: tuple[Any, ...]) -> tuple[Tree, Tensor]:
        steps = work.steps
        needed = [min(s for s in self.sizes if s >= a) for a in steps.active.tolist()]
        for size in sorted(set(needed) - set(self.captured), reverse=True):
            self.captured[size] = self._capture(size)
        self._load(work, stack, extra)
        for t, size in enumerate(needed):
            self.replay(size)
            if steps.exact:  # batches of another size have other shapes
                for step in steps.at_step(t, unusual=True):
                    work.step(step, self.stack, self.extra, self.total)
        return self.stack, self.total.clone()

    def replay(self, k: int) -> None:
        """The next step, of the first k clients."""
        graph = self.captured[k]
        if graph is None:
            self._body(k)
        else:
            graph.replay()

    def _load(self, work: Work, stack: Tree, extra: tuple[Any, ...]) -> None:
        steps = work.steps
        for n, v in stack.items():
            self.stack[n].copy_(v)
        for ours, given in zip((*self.extra, self.x), (*extra, work.x), strict=True):
            _copy(ours, given)
        self.at[: steps.count] = steps.at[..., : steps.usual]
        self.size[: steps.count] = steps.size
        if not steps.exact:
            self.weight[: steps.count] = steps.weights()
        self.index[: len(work.local.index)] = work.local.index
        self.now.zero_()
        self.total.zero_()
        if isinstance(self.work.lr, Tensor):
            if isinstance(work.lr, Tensor):
                self.work.lr.copy_(work.lr)
            else:
                self.work.lr.fill_(work.lr)
        for v in self.work.velocity.values():
            v.zero_()
        work.velocity = self.work.velocity

    def _capture(self, k: int) -> torch.cuda.CUDAGraph | None:
        """Record one step of the first k clients; the buffers hold nothing of value yet."""
        if self.pool is None:
            return None
        for v in self.stack.values():
            v.zero_()
        self.now.zero_()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._body(k)  # libraries choose their kernels outside the capture
            graph = _recorded(lambda: self._body(k), self.pool)
        torch.cuda.current_stream().wait_stream(side)
        return graph

    def _body(self, k: int) -> None:
        work, who = self.work, slice(0, k)
        exact, usual = work.steps.exact, work.steps.usual
        at = self.at.index_select(0, self.now)[0, who]
        size = self.size.index_select(0, self.now)[0, who]
        keep = (size == usual if exact else size > 0).to(size.dtype)
        weight = None if exact else self.weight.index_select(0, self.now)[0, who]
        # A tree may hold several models, `part/name`.
        known = work.net.stats if work.net.training else ()
        stats = [n for n in self.stack if n.rpartition("/")[2] in known]
        before = {n: self.stack[n][who].clone() for n in stats}
        step = Step(-1, who, at, weight, size * keep)
        work.step(step, self.stack, self.extra, self.total, keep)
        for n in stats:
            on = tree.column(keep.bool(), before[n])
            self.stack[n][who] = torch.where(on, self.stack[n][who], before[n])
        self.now += 1


def _recorded(body: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    """What `body` launches on the current stream. `torch.cuda.graph` would do it too, but gives all
    cached memory back before each capture: here only when there may be need of it."""
    graph = torch.cuda.CUDAGraph()
    cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    if cached > torch.cuda.mem_get_info()[0]:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    with _no_collection():
        # Other threads may use the GPU meanwhile: NCCL has one, where several ranks share the work.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            body()
        finally:
            graph.capture_end()
    return graph


@contextmanager
def _no_collection() -> Iterator[None]:
    """Freeing graphs of an earlier engine in the middle of a capture would spoil it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def stack_sizes(k: int, steps: int) -> list[int]:
    """k, then smaller and smaller down to 1; wide stacks shrink in finer steps. A capture costs as
    much as a hundred steps or so, and should be replayed: few steps a round, few sizes."""
    sizes, step = [k], max(FINE, k // 16)
    while sizes[-1] > 1:
        near = max(round(SHRINK * sizes[-1]), sizes[-1] - step)
        sizes.append(min(sizes[-1] - 1, near))
    most = max(3, steps // 3)
    if len(sizes) > most:
        sizes = [math.ceil(k ** (1 - i / (most - 1))) for i in range(most)]
    return sorted(set(sizes), reverse=True)


def _copy(ours: Any, given: Any) -> None:
    if isinstance(ours, Rows):
        ours.values[: len(given.values)] = given.values
    elif isinstance(ours, dict):
        for n, v in given.items():
            ours[n].copy_(v)
    elif ours is not None:
        ours.copy_(given)
