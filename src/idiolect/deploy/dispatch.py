"""The server's correspondence: greet nodes, seat clients, send requests, judge what comes back."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from idiolect.core.tree import Record
from idiolect.deploy import messages, validate
from idiolect.deploy.messages import Letter
from idiolect.deploy.registry import Arrival, Ledger, Seat, Task
from idiolect.errors import UserError

log = logging.getLogger("idiolect.server")

GREET_EVERY = 3.0  # seconds between looks at who is online
GREET_AGAIN = 10.0  # seconds until a node that was turned away is asked again


@dataclass(frozen=True)
class Terms:
    """How a federation is run, apart from the method's own settings."""

    experiment: str
    clients: int  # ids are 0..clients-1
    minimum: int = 0  # clients needed to begin; 0: all
    arrivals: int = 1  # answers needed to aggregate
    window: float = 0.0  # seconds a round waits; 0: for all (synchronous), or 60 (asynchronous)
    timeout: float = 600.0  # seconds until one client's answer is given up
    patience: float = 3600.0  # seconds without enough clients until the server gives up
    poll: float = 0.2  # seconds between looks into the letter box
    nodes: dict[str, int] = field(default_factory=dict)  # node id -> client id, bound by keys

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise UserError(f"clients must be at least 1, not {self.clients}")
        if not 0 <= self.minimum <= self.clients:
            raise UserError(f"minimum must be between 0 and {self.clients}, not {self.minimum}")
        if not 1 <= self.arrivals <= self.clients:
            raise UserError(f"arrivals must be between 1 and {self.clients}, not {self.arrivals}")
        if self.timeout <= 0 or self.patience <= 0 or self.window < 0 or self.poll <= 0:
            raise UserError("timeout, patience and poll must be positive, window not negative")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Post(Protocol):
    """How letters travel (see grid.py)."""

    def nodes(self) -> list[int]:
        """Nodes that are online."""

    def send(self, parcels: Sequence[tuple[int, Letter]], ttl: float) -> list[str | None]:
        """Send each letter to its node; message ids, None where that failed."""

    def collect(self, ids: Iterable[str], limits: dict[str, int]) -> list[Arrival]:
        """What has arrived of these messages, at once. `limits`: bytes allowed by message."""


class Desk:
    """Seats and tasks; `Hub` adds what the rounds make of them."""

    def __init__(self, terms: Terms, post: Post, journal: Path | None = None):
        self.terms, self.post = terms, post
        self.ledger = Ledger(journal)
        self.settings: dict[str, Any] = {}  # what a client must know to build method and model
        self.shape: tuple[int, ...] | None = None
        self.classes, self._labels = 0, ""
        self._greeted = 0.0
        self._not_before: dict[int, float] = {}

    # --- enrolment ---

    def gather(self) -> None:
        """Wait until enough clients are here to begin."""
        self.wait_for(self.terms.minimum or self.terms.clients)

    def wait_for(self, enough: int) -> None:
        end, told = time.monotonic() + self.terms.patience, -1
        while len(here := [s for s in self.ledger.seats.values() if s.status != "gone"]) < enough:
            if len(here) != told:
                told = len(here)
                log.info("%d of %d clients are here, waiting for %d", told, self.terms.clients,
                         enough)  # fmt: skip
            if time.monotonic() > end:
                raise UserError(
                    f"only {len(here)} of {enough} clients came within {self.terms.patience:.0f} s;"
                    " start the others or lower --min-clients"
                )
            self.pump()
            time.sleep(self.terms.poll)

    def greet(self) -> None:
        """Ask strangers who they are, and the gone whether they are back."""
        now = time.monotonic()
        if now - self._greeted < GREET_EVERY:
            return
        self._greeted = now
        online = set(self.post.nodes())
        asked = {t.node for t in self.ledger.out("hello")}
        for seat in self.ledger.seats.values():
            if seat.status == "idle" and seat.node not in online:
                seat.status = "gone"
                self.ledger.note("gone", client=seat.client, reason="node is offline")
        for node in sorted(online - asked):
            seated = self.ledger.at(node)
            if (seated is None or seated.status == "gone") and now >= self._not_before.get(node, 0):
                self._not_before[node] = now + GREET_AGAIN
                self.ask([(Task("hello", node, 0, 0.0), {})])

    def _seat(self, task: Task, meta: dict[str, Any]) -> str | None:
        """Give a client its place; the reason if it gets none."""
        if reason := validate.wrong_hello(meta, self.terms.clients):
            return reason
        client = int(meta["client"])
        if self.terms.nodes and self.terms.nodes.get(str(task.node)) != client:
            return f"the key of this node does not belong to client {client}"
        if self.shape is None:
            self.shape, self.classes = tuple(meta["shape"]), int(meta["classes"])
            self._labels = str(meta["labels"])
        if (tuple(meta["shape"]), meta["classes"]) != (self.shape, self.classes):
            return (
                f"client {client} has samples of shape {meta['shape']} in {meta['classes']} "
                f"classes, the others {list(self.shape)} in {self.classes}"
            )
        if meta["labels"] != self._labels:
            return f"client {client} has another list of class names than the others"
        seat = self.ledger.seats.get(client)
        if seat is not None and seat.node != task.node and seat.status != "gone":
            return f"client {client} is here already, as another node"
        if seat is None:
            seat = self.ledger.seats[client] = Seat(client, meta["name"], task.node, {})
        seat.node, seat.name, seat.status = task.node, meta["name"], "idle"
        seat.sizes, seat.fresh = dict(meta["sizes"]), bool(meta["fresh"])
        self.ledger.note("enrolled", client=client, name=seat.name, node=str(seat.node))
        if seat.recall:
            seat.recall = False
            self._recall(seat)
        return None

    def _recall(self, seat: Seat) -> None:
        """Work that was out when the server went down: has the client done it?"""
        task = Task("recall", seat.node, seat.since, 0.0, seat.client, seat.since)
        task.expected = self.expected(seat.client, seat.since)
        seat.status = "busy"
        self.ask([(task, {})])

    # --- requests ---

    def ask(self, requests: Sequence[tuple[Task, Record]], **more: Any) -> None:
        """Send requests; a message that cannot be sent is lost at once."""
        parcels = []
        for task, record in requests:
            meta = {
                "kind": task.kind,
                "experiment": self.terms.experiment,
                "version": task.version,
                "since": task.since,
                "config": self.settings,
            }
            parcels.append((task.node, Letter(meta | more, record)))
        ids = self.post.send(parcels, self.terms.timeout)
        for (task, _), message in zip(requests, ids, strict=True):
            task.deadline = time.monotonic() + self.terms.timeout
            if message is None:
                self.lose(task, "the message could not be sent", gone=True)
            else:
                self.ledger.tasks[message] = task

    def pump(self) -> None:
        """Take in whatever has happened since the last look."""
        self.greet()
        tasks = self.ledger.tasks
        limits = {m: messages.size(t.expected) for m, t in tasks.items()}
        for arrival in self.post.collect(list(tasks), limits):
            task = tasks.pop(arrival.message, None)
            if task is not None:
                self._receive(task, arrival)
        for message in self.ledger.overdue():
            late = tasks.pop(message)
            self.lose(late, f"no answer within {self.terms.timeout:.0f} s", gone=True)

    def _receive(self, task: Task, arrival: Arrival) -> None:
        if arrival.letter is None and arrival.malformed:
            self.refuse(task, arrival.problem)
            return
        if arrival.letter is None:
            self.lose(task, arrival.problem, gone=arrival.unavailable)
            return
        meta = arrival.letter.meta
        if task.kind == "hello" and type(meta.get("client")) is int:
            task.client = meta["client"]
        reason = validate.wrong_reply(arrival.letter, task, arrival.node, self.terms.experiment)
        if reason is None and "refused" in meta:
            text = str(meta["refused"])[:200]
            if "starting point is needed" in text and task.client in self.ledger.seats:
                self.ledger.seats[task.client].fresh = True
            self.lose(task, f"the client says: {text}", gone=False)
            return
        if reason is None and task.kind == "hello":
            reason = self._seat(task, meta)
        elif reason is None:
            reason = self.accept(task, arrival.letter)
        if reason is not None:
            self.refuse(task, reason)

    def refuse(self, task: Task, reason: str) -> None:
        """A reply that must not be used; its client may try again in the next round."""
        log.warning("refused %s of client %s: %s", task.kind, task.client, reason)
        self.ledger.note("refused", kind=task.kind, client=task.client, node=str(task.node),
                         version=task.version, reason=reason)  # fmt: skip
        self._free(task, gone=False)

    def lose(self, task: Task, reason: str, gone: bool) -> None:
        """No reply will come."""
        if task.kind != "hello":
            log.warning("no %s from client %s: %s", task.kind, task.client, reason)
        self.ledger.note("lost", kind=task.kind, client=task.client, node=str(task.node),
                         version=task.version, reason=reason)  # fmt: skip
        self._free(task, gone)

    def _free(self, task: Task, gone: bool) -> None:
        seat = self.ledger.seats.get(task.client)
        if seat is None or seat.node != task.node or task.kind == "hello":
            return
        seat.status = "gone" if gone else "idle"
        seat.since = -1
        if gone:
            self._not_before.pop(seat.node, None)

    # --- what the rounds decide ---

    def expected(self, client: int, version: int) -> Record:
        """What the answer to a fit of that round looks like."""
        raise NotImplementedError

    def accept(self, task: Task, letter: Letter) -> str | None:
        """Use a reply whose sender and version are right; the reason if it is not used."""
        raise NotImplementedError
