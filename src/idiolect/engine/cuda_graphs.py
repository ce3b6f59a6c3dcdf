"""Steps of the stack as CUDA graphs: captured once per stack size, replayed without launches.

A graph reads and writes fixed buffers: the stack of models, what every step of the round reads, and
a step counter on the device that every replay advances. So a round is a sequence of replays that
the host only starts. As clients finish, the stack shrinks through a few sizes; clients in a graph
that have nothing to do in a step get weight zero, hence gradient zero.

Without a GPU the same steps run one by one on the same buffers, which is how they are tested.
"""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.record import Rows
from idiolect.engine.samples import Samples
from idiolect.engine.steps import Step, Steps
from idiolect.engine.train import StepKind, StepState

MIN_STEPS_TO_CAPTURE = 4  # in a round
STACK_SIZE_RATIO = 0.8  # of a stack size to the next larger one, at least
MIN_SIZE_GAP = 3  # clients by which a stack may shrink at once, whatever the ratio
SPARE_ROOM = 1.3  # times the first round's need, so that a larger round fits the buffers
MAX_ROOM_FOR_STEPS = 1 << 30  # bytes of what the longest round's steps read


class CapturedSteps:
    """The captured steps of one engine."""

    def __init__(self, samples: Samples):
        self.samples = samples
        self.pool = torch.cuda.graph_pool_handle() if samples.device.type == "cuda" else None
        self._by_key: dict[Any, CapturedStep] = {}

    @property
    def captured(self) -> list[CapturedStep]:
        """What was captured so far."""
        return list(self._by_key.values())

    def forget(self) -> None:
        """Drop all graphs: they draw from random numbers that a broken capture has spoilt."""
        for step in self.captured:
            step.graphs.clear()

    def find(
        self, kind: StepKind, steps: Steps, state: StepState, longest: int = 0
    ) -> CapturedStep:
        """The step of an earlier round, or a new one if none has the shapes or the room. `longest`:
        steps of the largest client there is, who may come in a later round."""
        given = tuple(_shapes(e) for e in (state.params, *state.extra, state.x))
        one_lr = not isinstance(state.lr, Tensor)
        key = (kind, one_lr, steps.exact, steps.usual, *given)
        found = self._by_key.get(key)
        if found is None or not found.has_room(steps, state):
            found = CapturedStep(self, kind, steps, state, longest)
            self._by_key[key] = found
        return found


def _shapes(what: Any) -> Any:
    if isinstance(what, Rows):
        return what.values.shape[1:]
    if isinstance(what, dict):
        return tuple((n, v.shape) for n, v in what.items())
    return None if what is None else what.shape


class CapturedStep:
    """One kind of step on fixed buffers, captured for a few stack sizes."""

    def __init__(
        self, owner: CapturedSteps, kind: StepKind, steps: Steps, state: StepState, longest: int
    ):
        self.samples, self.kind, self._pool = owner.samples, kind, owner.pool
        self._forget_all = WeakMethod(owner.forget)  # a cycle would hold memory of the GPU
        self._can_be_captured = owner.pool is not None
        self._storage_version = self.samples.storage_version
        self.exact, self.width = steps.exact, steps.usual
        fitting = MAX_ROOM_FOR_STEPS // (8 * 4 * steps.clients * self.width)
        self.max_steps = max(int(SPARE_ROOM * steps.count) + 8, min(longest, fitting))
        stored = [e for e in (*state.extra, state.x) if isinstance(e, Rows)]
        self.max_rows = int(SPARE_ROOM * max([0, *(len(e.values) for e in stored)]))
        self.state = self._buffers(state)
        k, device, dtype = steps.clients, state.total.device, state.total.dtype
        # What step t reads: `Step.sample`, `y` and, for `Rows`, `at`; then `weight` (not in exact
        # mode), `size`, `keep` and `loss_scale`. One row per step, so that two kernels read it all.
        numbers = (self.max_steps, 3 if stored else 2, k, self.width)
        self.positions = torch.zeros(numbers, dtype=torch.int64, device=device)
        self._parts = [0 if self.exact else k * self.width, k, k, k]
        self.factors = torch.zeros(self.max_steps, sum(self._parts), dtype=dtype, device=device)
        self.counter = torch.zeros(1, dtype=torch.int64, device=device)
        self.stack_sizes = stack_sizes(k, max(steps.count, longest))
        # By clients in the stack; None: launched kernel by kernel.
        self.graphs: dict[int, torch.cuda.CUDAGraph | None] = {}

    def _buffers(self, state: StepState) -> StepState:
        """Memory for such a state that stays where it is."""
        params = {n: torch.empty_like(v) for n, v in state.params.items()}
        lr = torch.as_tensor(state.lr, dtype=state.total.dtype, device=state.total.device)
        return StepState(
            params,
            torch.zeros_like(state.total),
            tuple(self._room(e) for e in state.extra),
            self._room(state.x),
            lr.clone(),
            self.kind.memory(params),
        )

    def _room(self, what: Any) -> Any:
        if isinstance(what, Rows):
            return Rows(what.values.new_empty(self.max_rows, *what.values.shape[1:]))
        if isinstance(what, dict):
            return {n: torch.empty_like(v) for n, v in what.items()}
        return None if what is None else torch.empty_like(what)

    def has_room(self, steps: Steps, state: StepState) -> bool:
        """Whether the round fits the buffers, and the samples lie where they were."""
        stored = [len(e.values) for e in (*state.extra, state.x) if isinstance(e, Rows)]
        enough = steps.count <= self.max_steps and max([0, *stored]) <= self.max_rows
        return enough and self._storage_version == self.samples.storage_version

    def run(self, steps: Steps, state: StepState) -> StepState:
        """All steps from `state`; the result lies in the buffers until the next run."""
        needed = [min(s for s in self.stack_sizes if s >= a) for a in steps.active.tolist()]
        missing = sorted(set(needed) - set(self.graphs), reverse=True)
        for size in missing:
            self.graphs[size] = self._capture(size)
        if missing and self._can_be_captured:
            torch.cuda.empty_cache()  # what the first step took on the captures' stream
        self._load(steps, state)
        uncaptured = replace(self.state, lr=state.lr)
        for t, size in enumerate(needed):
            graph = self.graphs.get(size)
            if graph is None:
                self.body(size)
            else:
                graph.replay()
            if self.exact:  # batches of another size have other shapes
                for step in steps.at_step(t, unusual=True):
                    self.kind.step(step, uncaptured)
        return replace(self.state, total=self.state.total.clone())

    def _load(self, steps: Steps, state: StepState) -> None:
        ours, t = self.state, slice(0, steps.count)
        for buffer, given in zip(
            (ours.params, *ours.extra, ours.x), (state.params, *state.extra, state.x), strict=True
        ):
            _copy(buffer, given)
        for k, given in enumerate((steps.sample, steps.y, steps.at)[: self.positions.shape[1]]):
            self.positions[t, k] = given[..., : self.width]
        keep = (steps.size == self.width if self.exact else steps.size > 0).to(steps.size.dtype)
        weight, size, kept, scale = self.factors[t].split(self._parts, 1)
        if not self.exact:
            weight.copy_(steps.weights().flatten(1))
        size.copy_(steps.size * keep)
        kept.copy_(keep)
        scale.copy_(self.kind.loss_scale(state.lr, keep))
        assert isinstance(ours.lr, Tensor)
        ours.lr.copy_(state.lr) if isinstance(state.lr, Tensor) else ours.lr.fill_(state.lr)
        for zeroed in (self.counter, ours.total):
            zeroed.zero_()
        for n, buffer in ours.memory.items():
            buffer.copy_(state.memory[n]) if n in state.memory else buffer.zero_()

    def _capture(self, k: int) -> torch.cuda.CUDAGraph | None:
        """Record one step of the first k clients; the buffers hold nothing of value yet."""
        if not self._can_be_captured:
            return None
        for v in self.state.params.values():
            v.zero_()
        self.counter.zero_()
        with _side_stream():
            self.body(k)  # libraries choose their kernels outside the capture
            try:
                return _recorded(lambda: self.body(k), self._pool)
            except torch.OutOfMemoryError:
                self._forget()
                raise
            except RuntimeError as error:
                self._can_be_captured = False  # nor would other sizes succeed
                self._forget()
                reason = str(error).splitlines()[0]
                warnings.warn(
                    f"a step of the stack cannot be captured as a CUDA graph ({reason}); "
                    "its kernels are launched one by one, which is slower",
                    stacklevel=2,
                )
                return None

    def _forget(self) -> None:
        if forget := self._forget_all():
            forget()

    def body(self, k: int) -> None:
        """The next step of the first k clients."""
        who, params = slice(0, k), self.state.params
        sample, y, *at = self.positions.index_select(0, self.counter)[0, :, who].unbind()
        factors = self.factors.index_select(0, self.counter)[0].split(self._parts)
        size, keep, scale = (f[who] for f in factors[1:])
        weight = None if self.exact else factors[0].view(-1, self.width)[who]
        net = self.kind.loss.net
        # A tree may hold several models, `part/name`.
        known = net.stats if net.training else ()
        stats = [n for n in params if n.rpartition("/")[2] in known]
        before = {n: params[n][who].clone() for n in stats}
        step = Step(who, at[0] if at else sample, sample, y, weight, size, keep, loss_scale=scale)
        self.kind.step(step, self.state)
        for n in stats:
            on = tree.column(keep.bool(), before[n])
            params[n][who] = torch.where(on, params[n][who], before[n])
        self.counter += 1


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
            try:
                body()
            except BaseException:
                with suppress(RuntimeError):  # the first error says why
                    graph.capture_end()
                raise
            graph.capture_end()  # may say only now that something broke the capture
        except BaseException:
            _renew_random_numbers()
            raise
    return graph


def _renew_random_numbers() -> None:
    """A capture that broke off leaves PyTorch's generator waiting for its end, and the next dropout
    would fail: it gets a state of its own again."""
    ours = torch.cuda.default_generators[torch.cuda.current_device()]
    fresh = torch.Generator(ours.device).manual_seed(ours.initial_seed())
    ours.graphsafe_set_state(fresh.graphsafe_get_state())


@cache
def _stream_of(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)  # before what is computed beside it (lanes.py)


@contextmanager
def _side_stream() -> Iterator[None]:
    """A stream of its own, as captures need it. It is one for all captures: PyTorch keeps freed
    memory by stream, and each new one would keep what a step needs once more."""
    side = _stream_of(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        yield
    torch.cuda.current_stream().wait_stream(side)


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
    sizes, gap = [k], max(MIN_SIZE_GAP, k // 16)
    while sizes[-1] > 1:
        near = max(round(STACK_SIZE_RATIO * sizes[-1]), sizes[-1] - gap)
        sizes.append(min(sizes[-1] - 1, near))
    most = max(3, steps // 3)
    if len(sizes) > most:
        sizes = [math.ceil(k ** (1 - i / (most - 1))) for i in range(most)]
    return sorted(set(sizes), reverse=True)


def _copy(buffer: Any, given: Any) -> None:
    if isinstance(buffer, Rows):
        buffer.values[: len(given.values)] = given.values
    elif isinstance(buffer, dict):
        for n, v in given.items():
            buffer[n].copy_(v)
    elif buffer is not None:
        buffer.copy_(given)
