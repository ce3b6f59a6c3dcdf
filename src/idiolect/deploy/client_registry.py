"""Which clients take part, which requests wait for an answer, and what happened so far."""

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from idiolect.core.tree import Record
from idiolect.deploy.messages import Payload

Status = Literal["idle", "busy", "gone"]
MAX_ROUNDS_OF_REST = 64


@dataclass(eq=False)
class PendingRequest:
    """A message that was sent and not answered yet."""

    kind: str
    node: int
    version: int  # round in which it was sent, from 0
    client: int = -1  # unknown to the first hello, which asks for it
    since: int = -1  # round in which the client's work began
    expected: Record = field(default_factory=dict)  # what the answer must look like
    payload: Payload | None = None  # set when it is sent, as are the times
    deadline: float = 0.0
    ask_again: float = 0.0
    asked: int = 1  # times
    message: str = ""  # id of the message that asked first


@dataclass
class ClientEntry:
    """What the server knows of one client."""

    client: int
    name: str
    node: int
    sizes: dict[str, int]
    fresh: bool = True  # has no state of this experiment yet: it gets the starting point
    status: Status = "idle"
    since: int = -1  # round in which the work it has not delivered yet began; -1: none
    recall: bool = False  # the server restarted while that work was not delivered: ask for it
    kept: bool = False  # has its personal model as a file, by the server's last word
    waits: int = 0  # answers in a row that were waited for in vain
    rests_until: int = 0  # round, from 0, in which it is asked again

    def free(self, gone: bool = False) -> None:
        """No work of this client is awaited any more."""
        self.status, self.since = "gone" if gone else "idle", -1

    def rest(self, version: int) -> None:
        """All waited for this client in vain: it sits out 0 rounds, then 1, 3, 7, …"""
        self.waits += 1
        self.rests_until = version + min(2 ** (self.waits - 1), MAX_ROUNDS_OF_REST)

    def delivered(self) -> None:
        self.waits, self.rests_until = 0, 0


class ClientRegistry:
    """Clients by id, pending requests by message id."""

    def __init__(self, journal: Path | None = None):
        self.clients: dict[int, ClientEntry] = {}
        self.pending: dict[str, PendingRequest] = {}
        self.counts: Counter[str] = Counter()
        self.notices: dict[int, str] = {}  # node -> what it is told with the next request
        self._journal = journal

    def at_node(self, node: int) -> ClientEntry | None:
        return next((c for c in self.clients.values() if c.node == node), None)

    def idle(self, t: int) -> list[int]:
        """Clients that can be asked in round t; those who rest only if there are no others."""
        idle = sorted(i for i, c in self.clients.items() if c.status == "idle")
        return [i for i in idle if self.clients[i].rests_until <= t] or idle

    def away(self) -> list[int]:
        """Rounds in which work began that is not delivered yet."""
        return sorted(c.since for c in self.clients.values() if c.since >= 0)

    def sizes(self) -> dict[int, dict[str, int]]:
        """Samples per part of every known client."""
        return {i: c.sizes for i, c in sorted(self.clients.items())}

    def requests(self) -> list[PendingRequest]:
        """Each once, however often it was asked."""
        return list({id(r): r for r in self.pending.values()}.values())

    def pending_of(self, *kinds: str) -> list[PendingRequest]:
        return [r for r in self.requests() if r.kind in kinds]

    def settle(self, request: PendingRequest) -> None:
        """Nothing more is awaited for this request."""
        self.pending = {m: r for m, r in self.pending.items() if r is not request}

    def note(self, what: str, **about: Any) -> None:
        """Count an event and write it to the journal, a file for people."""
        self.counts[what] += 1
        if self._journal is None:
            return
        line = json.dumps({"time": time.time(), "what": what, **about}, allow_nan=False)
        with self._journal.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    # `seats` is what checkpoints have always called the clients: old runs must stay readable.

    def state(self) -> dict[str, Any]:
        """What a restarted server must know: who the clients are and whose work is awaited."""
        kept = ("name", "node", "sizes", "fresh", "since", "kept")
        seats = {str(i): {k: getattr(c, k) for k in kept} for i, c in self.clients.items()}
        return {"seats": seats, "counts": dict(self.counts)}

    def restore(self, state: dict[str, Any]) -> None:
        self.counts = Counter(state["counts"])
        for text, about in state["seats"].items():
            client = int(text)
            if client not in self.clients:
                known = ClientEntry(client, about["name"], about["node"], about["sizes"])
                known.status = "gone"  # until it answers
                self.clients[client] = known
            self.clients[client].since = about["since"]
            self.clients[client].kept = about.get("kept", False)
            self.clients[client].recall = about["since"] >= 0
