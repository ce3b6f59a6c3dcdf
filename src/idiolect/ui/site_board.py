"""The sites of a real federation: who they are, when they last answered, what was refused and why.

It follows the server's journal and the rounds as they are written; no line is read twice.
"""

import math
from collections import deque
from pathlib import Path
from typing import Any

from idiolect.core.text import one_line
from idiolect.ui.event_tail import EventTail

JOURNAL_SHOWN = 200  # newest lines
HEARD = ("enrolled", "refused", "late")  # lines of the journal that a site was heard for

Site = dict[str, Any]


class SiteBoard:
    """The sites of one run, as far as its files tell."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._begin()

    def _begin(self) -> None:
        self.journal = EventTail(self.run / "flower" / "journal.jsonl")
        self.rounds = EventTail(self.run / "events.jsonl")
        self.sites: dict[int, Site] = {}
        self.newest: deque[dict[str, str]] = deque(maxlen=JOURNAL_SHOWN)

    def __call__(self) -> dict[str, Any]:
        """Sites by number, and the newest lines of the journal, newest first."""
        begun = self.journal.offset or self.rounds.offset
        (cut, lines), (cut_too, events) = self.journal.fresh(), self.rounds.fresh()
        if begun and (cut or cut_too):  # the run was resumed: what follows is another story
            self._begin()
            (_, lines), (_, events) = self.journal.fresh(), self.rounds.fresh()
        for line in lines:
            self.newest.appendleft({k: one_line(v)[:300] for k, v in line.items()})
            self._note(line)
        for event in events:
            self._count(event)
        known = [self.sites[client] for client in sorted(self.sites)]
        return {"sites": known, "journal": list(self.newest)}

    def _note(self, line: dict[str, Any]) -> None:
        what, client = one_line(line.get("what", "")), line.get("client")
        if not isinstance(client, int) or client < 0:  # nobody known was asked
            return
        site = self._site(client)
        if what in HEARD:  # other lines say that nothing was heard
            site["seen"] = _number(line.get("time"))
        if what == "enrolled":
            site |= {"name": one_line(line.get("name", "")), "state": "here", "last_note": ""}
            return
        if what in ("gone", "lost"):
            site["state"] = what
        site["refused"] += what == "refused"
        site["last_note"] = one_line(f"{what}: {line.get('reason', '')}")[:200]
        site["noted"] = _number(line.get("time"))

    def _count(self, event: dict[str, Any]) -> None:
        """What a round says of its sites. Each gets and sends as much as any other of the round:
        messages have one form."""
        started, arrived = _numbers(event.get("started")), _numbers(event.get("arrived"))
        late, when = event.get("staleness"), _number(event.get("time")) or 0.0
        for client in started:
            share = (_number(event.get("bytes_down")) or 0.0) / len(started)
            self._site(client)["bytes_down"] += share
        for client, stale in zip(arrived, late if isinstance(late, list) else (), strict=False):
            site = self._site(client)
            site["delivered"] += 1
            site["bytes_up"] += (_number(event.get("bytes_up")) or 0.0) / len(arrived)
            site |= {"round": event.get("round"), "staleness": stale}
            site["seen"] = max(site["seen"] or 0, when)
            if when > (site["noted"] or 0):  # it is back since then
                site |= {"state": "here", "last_note": ""}

    def _site(self, client: int) -> Site:
        return self.sites.setdefault(
            client,
            {"client": client, "name": "", "state": "unknown", "seen": None, "round": None}
            | {"delivered": 0, "bytes_up": 0.0, "bytes_down": 0.0, "staleness": None}
            | {"refused": 0, "last_note": "", "noted": None},
        )


def _numbers(value: Any) -> list[int]:
    return [k for k in value if isinstance(k, int)] if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
