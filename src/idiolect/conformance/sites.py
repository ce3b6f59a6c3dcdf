"""A method on real sites, all in one process: requests and answers pass through the bytes they have
on a network, and sites keep their state on disk."""

import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect import models
from idiolect.conformance.problem import EXACT, Subject, ragged_arrays
from idiolect.core import tree
from idiolect.core.tree import Tree
from idiolect.data import Federation
from idiolect.deploy.client import Client
from idiolect.deploy.enrolment import Enrolment
from idiolect.deploy.in_process import LocalTransport
from idiolect.deploy.server import FederationServer
from idiolect.deploy.terms import FederationTerms
from idiolect.runs import config as settings
from idiolect.simulation.outcome import Round
from idiolect.simulation.simulation import Simulation

EXPERIMENT = "0123456789abcdef"
SIZES, CLASSES, ROUNDS = (20, 27, 7), 5, 2
WAITING: dict[str, Any] = {"poll": 0.001, "timeout": 20.0, "patience": 5.0}


@dataclass(frozen=True)
class Deployed:
    """The same rounds on sites and simulated."""

    rounds: list[Round]
    simulated: list[Round]
    server: tuple[Tree, Tree]  # the server's state of both
    private: list[tuple[Tree, Tree]]  # every client's private state of both
    sent: dict[str, int]  # bytes of tensors that went through, down and up
    error: BaseException | None  # the first failure of a site


def deployed(subject: Subject) -> Deployed:
    """Run the method on three sites and in the simulator."""
    arrays = ragged_arrays(SIZES, CLASSES)
    flags = {"method": {"name": subject.name, **subject.method.as_dict()}, "rounds": ROUNDS}
    flags |= {"model": {"name": "mlp"}, "checkpoint_every": 1, **EXACT}
    config = settings.resolve(None, flags, allow_code=subject.allow_code)
    sim = _simulation(subject, config, Federation.from_arrays(arrays, classes=CLASSES))
    theirs = [sim.start(), *(sim.step() for _ in range(ROUNDS))]
    with _sites(subject, arrays) as sites, _failures() as failures:
        transport = LocalTransport(sites, keep_blocks=True)
        enrolment = Enrolment(FederationTerms(EXPERIMENT, len(SIZES), **WAITING), transport)
        enrolment.wait_for(len(SIZES))
        server = FederationServer(config, enrolment, subject.allow_code)
        ours = [server.start(), *(server.step() for _ in range(ROUNDS))]
        private = [(_private(site), tree.leaves(sim.mine[[site.id]])) for site in sites]
        return Deployed(
            ours,
            theirs,
            (_shared(server.state()[0]), _shared(sim.state()[0])),
            private,
            {way: _bytes_of(transport, way) for way in ("down", "up")},
            next(iter(failures), None),
        )


def _simulation(subject: Subject, config: dict[str, Any], data: Federation) -> Simulation:
    model = models.build(config["model"], data.shape, data.classes, config["seed"])
    how = {"seed": config["seed"], "rounds": config["rounds"], "engine": "loop", **EXACT}
    return Simulation(subject.method, data, model, **how)


@contextmanager
def _sites(subject: Subject, arrays: list[dict[str, np.ndarray]]) -> Iterator[list[Client]]:
    with tempfile.TemporaryDirectory(prefix="idiolect-check-") as folder:
        own = subject.name if subject.allow_code else None
        yield [
            Client(
                i,
                Federation.from_arrays([mine], classes=CLASSES),
                Path(folder) / f"site{i}",
                method=own,
            )
            for i, mine in enumerate(arrays)
        ]


@contextmanager
def _failures() -> Iterator[list[BaseException]]:
    """What fails at a site goes to its log, and to nobody else; here that is this list."""
    found: list[BaseException] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1] is not None:
                found.append(record.exc_info[1])

    log, handler = logging.getLogger("idiolect"), Kept()
    log.addHandler(handler)
    try:
        yield found
    finally:
        log.removeHandler(handler)


def _private(site: Client) -> Tree:
    state = site.store.load(EXPERIMENT)
    return {} if state is None else tree.leaves(state.mine)


def _shared(state: Tree) -> Tree:
    return {n: v for n, v in state.items() if n.startswith(("server/", "tables/"))}


def _bytes_of(transport: LocalTransport, way: str) -> int:
    """Bytes of tensors that belong to the method, in the blocks of local work."""
    parts = ("shared/", "each/") if way == "down" else ("up/",)
    total = 0
    for kind, block in transport.blocks:
        if kind != f"fit {way}" or not block:
            continue
        length = int.from_bytes(block[:8], "little")  # safetensors: a header that says where
        for name, about in json.loads(block[8 : 8 + length]).items():
            if name.startswith(parts):
                begin, end = about["data_offsets"]
                total += end - begin
    return total


def gap(a: Tensor, b: Tensor) -> float:
    """How far two tensors are apart, relative to the first; infinite where they are of different
    kinds."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if not a.numel():
        return 0.0
    if not a.is_floating_point():
        return 0.0 if torch.equal(a, b) else float("inf")
    if not torch.equal(a.isnan(), b.isnan()):
        return float("inf")
    a, b = a.double().nan_to_num(), b.double().nan_to_num()
    return float((a - b).abs().max()) / max(1e-6, float(a.abs().max()))
