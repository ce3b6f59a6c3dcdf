"""Clients side by side on the cores of a CPU, in threads with networks of their own."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from copy import deepcopy
from queue import SimpleQueue
from typing import TypeVar

import torch

from idiolect.core.net import Net

Nets = tuple[Net, Net]  # to predict with, and to train
Done = TypeVar("Done")


class ClientThreads:
    """Works on clients side by side.

    A network holds one client's parameters while it computes, so every thread needs networks of its
    own. PyTorch releases the interpreter inside an operation: two threads with one core each get
    more done than one thread that uses two cores inside each operation.
    """

    def __init__(self, nets: Nets, max_threads: int):
        """`max_threads` counts all threads, those beside one another times those inside an
        operation."""
        self.max_threads = max_threads
        self._idle: SimpleQueue[Nets] = SimpleQueue()
        self._idle.put(nets)
        self._copies = 1

    def map(
        self, work: Callable[[Nets, int], Done], weights: Sequence[int], at_once: int | None = None
    ) -> list[Done]:
        """`work(nets, k)` for every k. No more than `at_once` run side by side, and only as many as
        are sure to keep all threads busy, judged by their weights; the heaviest go first."""
        side = min(
            self.max_threads, at_once or self.max_threads, sum(weights) // max([1, *weights])
        )
        gradients = torch.is_grad_enabled()

        def one(k: int) -> Done:
            with torch.set_grad_enabled(gradients), self._borrowed() as nets:
                return work(nets, k)

        if side < 2:
            return [one(k) for k in range(len(weights))]
        while self._copies < side:
            nets = self._idle.get()
            self._idle.put(nets)
            self._idle.put(deepcopy(nets))
            self._copies += 1
        inside, before = self.max_threads // side, torch.get_num_threads()
        pool = ThreadPoolExecutor(side, "clients", torch.set_num_threads, (inside,))
        try:
            order = sorted(range(len(weights)), key=lambda k: -weights[k])
            done = {k: pool.submit(copy_context().run, one, k) for k in order}
            return [done[k].result() for k in range(len(weights))]
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(before)  # for later threads: those of the pool set their own

    @contextmanager
    def _borrowed(self) -> Iterator[Nets]:
        nets = self._idle.get()
        try:
            yield nets
        finally:
            self._idle.put(nets)
