"""Several processes that share the clients of a round, as torchrun starts them: one per GPU.

Every rank holds the same federation, server and clients' state. What needs a client's data is done
by the one rank the client falls to, and the result is given to all; the server's own work is
repeated on every rank. Randomness is keyed by client, so the numbers are those of one process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from idiolect.core import tree
from idiolect.core.tree import Record, Tree
from idiolect.errors import UserError

Answer = TypeVar("Answer")
Layout = dict[str, tuple[str, list[int]]]  # of each leaf: dtype, and shape without the client axis

CPU = torch.device("cpu")
# A rank may wait for another's largest client, or for the first one to write a checkpoint. When a
# process dies torchrun ends the others at once; this limit is for one that hangs.
MAX_WAIT = timedelta(hours=1)


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run."""

    rank: int = 0
    world: int = 1

    @staticmethod
    def current() -> Ranks:
        """One of a process group (see `joined`), or alone."""
        if dist.is_available() and dist.is_initialized():
            return Ranks(dist.get_rank(), dist.get_world_size())
        return Ranks()

    @property
    def first(self) -> bool:
        """The rank that prints and writes."""
        return self.rank == 0

    def shares(self, weights: Sequence[int]) -> list[list[int]]:
        """Positions of the clients of every rank: the largest first, each to the rank with the
        least so far, so rank 0 always has one."""
        shares: list[list[int]] = [[] for _ in range(self.world)]
        load = [0] * self.world
        for k in sorted(range(len(weights)), key=lambda k: -weights[k]):
            to = load.index(min(load))
            shares[to].append(k)
            load[to] += weights[k] + 1
        return [sorted(share) for share in shares]

    def share(self, weights: Sequence[int]) -> list[int]:
        """Positions of the clients that this rank computes: all of them if it is alone."""
        if self.world == 1 or _APART.get():
            return list(range(len(weights)))
        return self.shares(weights)[self.rank]

    def combine(self, done: Record, weights: Sequence[int], device: torch.device) -> Record:
        """From the results of each rank's `share` those of all clients, on every rank. `done` is a
        record of records with a row per client, empty for a rank without clients; every part takes
        one collective."""
        if self.world == 1 or _APART.get():
            return done
        shares = self.shares(weights)
        leaves = {part: tree.leaves(record) for part, record in done.items()}
        layouts = {part: _layout(found) for part, found in leaves.items()}
        if not all(shares):  # a rank without clients does not know what to expect
            layouts = self.agree(lambda: layouts)
        own = shares[self.rank]
        return {
            part: tree.nest(_gather(leaves.get(part, {}), layout, shares, own, device))
            for part, layout in layouts.items()
        }

    def agree(self, ask: Callable[..., Answer], *about: Any) -> Answer:
        """What `ask(*about)` (a JSON value) is for the first rank; the others are not asked."""
        if self.world == 1:
            return ask(*about)
        text = json.dumps(ask(*about)).encode() if self.first else b""
        size = torch.tensor([len(text)])
        with _contact():
            dist.broadcast(size, 0)
            body = torch.tensor(list(text.ljust(int(size))), dtype=torch.uint8)
            dist.broadcast(body, 0)
        answer: Answer = json.loads(bytes(body.tolist()))
        return answer

    def any(self, here: bool) -> bool:
        """Whether it is so on any rank."""
        if self.world == 1:
            return here
        flag = torch.tensor([int(here)])
        with _contact():
            dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag)


_APART = ContextVar("apart", default=False)


@contextmanager
def by_itself() -> Iterator[None]:
    """Inside, this rank does the work of all clients it is asked about and talks to no other rank:
    for work that the other ranks do not take part in."""
    before = _APART.set(True)
    try:
        yield
    finally:
        _APART.reset(before)


def _layout(leaves: Tree) -> Layout:
    return {n: (str(x.dtype).removeprefix("torch."), list(x.shape[1:])) for n, x in leaves.items()}


def _gather(
    leaves: Tree, layout: Layout, shares: list[list[int]], own: list[int], device: torch.device
) -> Tree:
    """The leaves of all ranks' clients, in the clients' order. They travel as bytes, whatever their
    types, in one buffer that is as long for every rank as for the one with the most clients."""
    places: dict[str, tuple[slice, torch.dtype, list[int]]] = {}
    width = 0
    for name, (kind, shape) in layout.items():
        if name.endswith("/"):  # an empty part
            continue
        dtype: torch.dtype = getattr(torch, kind)
        size = torch.Size(shape).numel() * dtype.itemsize
        places[name] = slice(width, width + size), dtype, shape
        width += size
    most = max(map(len, shares))
    sent = torch.zeros(most, width, dtype=torch.uint8, device=device)
    for name, (at, _, _) in places.items() if own else ():
        sent[: len(own), at] = _as_bytes(leaves[name].detach().to(device))
    came = sent.new_empty(len(shares) * most, width)
    if width:
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        with _contact():
            gather(came, sent)
    del sent
    rows = [torch.tensor(share, dtype=torch.int64, device=device) for share in shares]
    count = sum(map(len, shares))
    out: Tree = {name: torch.empty(0) for name in layout}
    for name, (at, dtype, shape) in places.items():
        found = torch.empty(count, at.stop - at.start, dtype=torch.uint8, device=device)
        for mine, block in zip(rows, came.split(most), strict=True):
            found[mine] = block[: len(mine), at]
        out[name] = found.view(dtype).reshape(count, *shape)
    return out


def _as_bytes(x: Tensor) -> Tensor:
    k = len(x)
    rows = x.reshape(k, x.numel() // k).contiguous()
    if rows.stride(-1) != 1:  # one column: it may lie anyhow and still be called contiguous
        rows = rows.clone(memory_format=torch.contiguous_format)
    return rows.view(torch.uint8)


@contextmanager
def _contact() -> Iterator[None]:
    """A collective fails where another process has ended."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            "another process of this run is gone (killed, or out of memory?); "
            f"`idiolect resume RUN` continues from its last checkpoint ({reason})"
        ) from error


def gpu_of_this_rank(device: torch.device) -> torch.device:
    """`cuda` with the number of this rank's GPU."""
    ranks = Ranks.current()
    if ranks.world == 1 or device.type != "cuda" or device.index is not None:
        return device
    here, gpus = int(os.environ.get("LOCAL_RANK", ranks.rank)), torch.cuda.device_count()
    if here >= gpus:
        raise UserError(
            f"this machine has {gpus} GPUs, too few for one per process; use "
            f"--nproc-per-node {gpus}, or --device cpu"
        )
    torch.cuda.set_device(here)  # streams and graphs go to the current one
    return torch.device("cuda", here)


@contextmanager
def joined() -> Iterator[Ranks]:
    """Inside, this process is one of those that torchrun started, if it did. Only the first rank
    prints. When something fails, the rank that failed first prints too; the errors that follow from
    it on other ranks stay silent."""
    world = os.environ.get("WORLD_SIZE", "1")
    if world == "1":
        yield Ranks()
        return
    if "RANK" not in os.environ:
        raise UserError(f"WORLD_SIZE is {world} but RANK is not set; unset it or start by torchrun")
    from torch.distributed.rendezvous import rendezvous

    store, rank, size = next(rendezvous("env://", timeout=MAX_WAIT))
    both = torch.cuda.is_available() and dist.is_nccl_available()
    kind = "cpu:gloo,cuda:nccl" if both else "gloo"
    dist.init_process_group(kind, store=store, rank=rank, world_size=size, timeout=MAX_WAIT)
    ranks, heard = Ranks.current(), sys.stderr
    silence = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (until the process ends)
    if not ranks.first:
        sys.stdout = sys.stderr = silence
    try:
        yield ranks
    except BaseException:
        sys.stderr = heard if _first_to_fail(store) else silence
        raise
    dist.destroy_process_group()


def _first_to_fail(store: Any) -> bool:
    try:
        return bool(store.add("failed", 1) == 1)
    except RuntimeError:  # whoever kept count is gone
        return True
