"""Clients side by side on the cores of a CPU: threads, each with networks of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from copy import deepcopy
from queue import SimpleQueue
from typing import TypeVar

import torch

from idiolect.core.net import Net

Nets = tuple[Net, Net]  # to predict with, and to train
Done = TypeVar("Done")


class Crew:
    """Does pieces of work that do not depend on one another.

    A network holds one client's parameters while it computes, so every thread has its own. PyTorch
    lets go of the interpreter inside an operation: two threads with one core each get more done
    than two cores inside each operation.
    """

    def __init__(self, nets: Nets, most: int):
        """`most` threads in all, inside operations or beside one another."""
        self.most = most
        self._idle: SimpleQueue[Nets] = SimpleQueue()
        self._idle.put(nets)
        self._made = 1

    def map(
        self, work: Callable[[Nets, int], Done], weights: Sequence[int], room: int | None = None
    ) -> list[Done]:
        """`work(nets, k)` of every k. As many at once as there is `room` for and as are sure to
        keep all threads busy, judged by their weights; the heaviest first."""
        side = min(self.most, room or self.most, sum(weights) // max([1, *weights]))
        if side < 2:
            return [self._lend(work, k) for k in range(len(weights))]
        while self._made < side:
            nets = self._idle.get()
            self._idle.put(nets)
            self._idle.put(deepcopy(nets))
            self._made += 1
        inside, gradients = self.most // side, torch.is_grad_enabled()

        def one(k: int) -> Done:
            with torch.set_grad_enabled(gradients):
                return self._lend(work, k)

        before = torch.get_num_threads()
        pool = ThreadPoolExecutor(side, "crew", torch.set_num_threads, (inside,))
        try:
            order = sorted(range(len(weights)), key=lambda k: -weights[k])
            done = {k: pool.submit(copy_context().run, one, k) for k in order}
            return [done[k].result() for k in range(len(weights))]
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(before)  # for threads to come: those of the pool set theirs

    def _lend(self, work: Callable[[Nets, int], Done], k: int) -> Done:
        nets = self._idle.get()
        try:
            return work(nets, k)
        finally:
            self._idle.put(nets)
