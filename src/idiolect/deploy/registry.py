"""Who takes part, what each was asked, and what came of it."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from idiolect.core.tree import Record
from idiolect.deploy.messages import Letter

Status = Literal["idle", "busy", "gone"]


@dataclass
class Task:
    """One message that is out."""

    kind: str
    node: int
    version: int
    deadline: float
    client: int = -1  # a hello does not know yet whom it greets
    since: int = -1  # of late work: the round it was started in
    expected: Record = field(default_factory=dict)  # what an answer must look like


@dataclass
class Seat:
    """One client of the federation."""

    client: int
    name: str
    node: int
    sizes: dict[str, int]
    fresh: bool = True  # has no state of this experiment yet: gets the starting point
    status: Status = "idle"
    since: int = -1  # round of work that is out, -1 if none
    recall: bool = False  # that work was out when the server went down


@dataclass(frozen=True)
class Arrival:
    """A reply, or word that there will be none."""

    message: str
    node: int
    letter: Letter | None
    problem: str = ""
    unavailable: bool = False  # the node itself is gone, not just this answer
    malformed: bool = False  # something came, but it is no letter


class Ledger:
    """Seats by client id and messages by their id."""

    def __init__(self, journal: Path | None = None):
        self.seats: dict[int, Seat] = {}
        self.tasks: dict[str, Task] = {}
        self.counts: Counter[str] = Counter()
        self._journal = journal

    # --- seats ---

    def at(self, node: int) -> Seat | None:
        return next((s for s in self.seats.values() if s.node == node), None)

    def idle(self) -> list[int]:
        return sorted(i for i, s in self.seats.items() if s.status == "idle")

    def away(self) -> list[int]:
        """Start rounds of work that is still out."""
        return sorted(s.since for s in self.seats.values() if s.since >= 0)

    # --- tasks ---

    def out(self, *kinds: str) -> list[Task]:
        return [t for t in self.tasks.values() if t.kind in kinds]

    def overdue(self) -> list[str]:
        now = time.monotonic()
        return [m for m, t in self.tasks.items() if now > t.deadline]

    # --- what happened ---

    def note(self, what: str, **about: Any) -> None:
        """Count an event and write it down for people."""
        self.counts[what] += 1
        if self._journal is None:
            return
        line = json.dumps({"time": time.time(), "what": what, **about}, allow_nan=False)
        with self._journal.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def state(self) -> dict[str, Any]:
        """What a restart must know: who the clients are and whose work is out."""
        seats = {
            str(i): {
                "name": s.name,
                "node": s.node,
                "sizes": s.sizes,
                "fresh": s.fresh,
                "since": s.since,
            }
            for i, s in self.seats.items()
        }
        return {"seats": seats, "counts": dict(self.counts)}

    def restore(self, state: dict[str, Any]) -> None:
        self.counts = Counter(state["counts"])
        for text, about in state["seats"].items():
            known = self.seats.get(int(text))
            if known is None:
                known = Seat(int(text), about["name"], about["node"], about["sizes"])
                known.status = "gone"  # until it answers
                self.seats[int(text)] = known
            known.since = about["since"]
            known.recall = known.since >= 0
