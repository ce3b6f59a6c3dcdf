"""Who starts in each round, and whose work arrives: participation, stragglers, a virtual clock.

A schedule is a list of turns worked out before the run from its settings and seed alone, so a
resumed run continues the same one. Rounds count from 0 here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from idiolect.core import rng
from idiolect.errors import UserError


@dataclass(frozen=True)
class Turn:
    """One round: who downloads and trains, and whose work reaches the server (with its start)."""

    start: list[int] = field(default_factory=list)
    arrive: dict[int, int] = field(default_factory=dict)  # client -> round it started
    lost: list[int] = field(default_factory=list)  # of those who start: work nobody receives


@dataclass(frozen=True)
class Participation:
    """Who takes part in a round."""

    kind: Literal["full", "fixed", "binomial"] = "fixed"
    rate: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in ("full", "fixed", "binomial"):
            raise UserError(
                f"participation.kind must be full, fixed or binomial, not {self.kind!r}"
            )
        if not 0 < self.rate <= 1:
            raise UserError(f"participation must be above 0 and at most 1, not {self.rate}")

    def draw(self, clients: Sequence[int], seed: int, round: int) -> list[int]:
        """int(rate * N) clients without replacement, or each with probability `rate`."""
        if self.kind == "full" or self.rate == 1:
            return list(clients)
        draw = rng.keyed(seed, "participation", round)
        if self.kind == "binomial":
            return [
                i for i, u in zip(clients, draw.random(len(clients)), strict=True) if u < self.rate
            ]
        count = max(1, int(self.rate * len(clients) + 1e-9))
        return sorted(int(i) for i in draw.choice(list(clients), count, replace=False))


@dataclass(frozen=True)
class Stragglers:
    """Clients with fixed missing periods: straggler m (the m-th client) is away for m rounds.

    Cycles, with T train, U late upload, B train and upload, L train in vain:
    code `T ..(p-1).. U B` as the authors' program, paper `T ..(p-1).. U`, discard `..(p).. L B`
    where late work is thrown away. auto is code for asynchronous methods, discard for the others.
    """

    count: int = 0
    cycle: Literal["auto", "code", "paper", "discard"] = "auto"
    periods: tuple[int, ...] = ()  # of clients 0, 1, …; 0 = on time. Overrides count

    def __post_init__(self) -> None:
        if self.cycle not in ("auto", "code", "paper", "discard"):
            raise UserError(
                f"stragglers.cycle must be auto, code, paper or discard, not {self.cycle!r}"
            )
        if self.count < 0 or any(p < 0 for p in self.periods):
            raise UserError("stragglers.count and stragglers.periods must not be negative")

    def pattern(self, period: int, asynchronous: bool) -> str:
        cycle = self.cycle
        if cycle == "auto":
            cycle = "code" if asynchronous else "discard"
        if cycle == "discard":
            return "." * period + "LB"
        return "T" + "." * (period - 1) + ("UB" if cycle == "code" else "U")

    def of(self, clients: Sequence[int]) -> dict[int, int]:
        """Client -> missing period."""
        periods = self.periods or tuple(range(1, self.count + 1))
        if len(periods) > len(clients):
            raise UserError(
                f"{len(periods)} stragglers but only {len(clients)} clients take part; "
                "lower stragglers.count"
            )
        return {i: p for i, p in zip(clients, periods, strict=False) if p > 0}


@dataclass(frozen=True)
class Clock:
    """Asynchronous arrival: every client has its own speed, the server its own pace.

    Client i needs `exp(spread * N(0,1)) * exp(jitter * N(0,1))` units of virtual time for a job.
    A round lasts `window` units, or until `arrivals` clients have reported if that is set.
    """

    window: float = 1.0
    arrivals: int = 0
    spread: float = 0.5
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if self.window <= 0 or self.arrivals < 0 or self.spread < 0 or self.jitter < 0:
            raise UserError(
                "clock.window must be positive; clock.arrivals, spread and jitter not negative"
            )

    def duration(self, client: int, job: int, seed: int) -> float:
        speed = rng.keyed(seed, "clock/speed", client).normal() * self.spread
        noise = rng.keyed(seed, "clock/job", client, job).normal() * self.jitter
        return float(2.718281828459045 ** (speed + noise))


def make(
    clients: Sequence[int],
    rounds: int,
    seed: int,
    *,
    asynchronous: bool,
    participation: Participation,
    stragglers: Stragglers | None = None,
    clock: Clock | None = None,
) -> list[Turn]:
    """The whole schedule of a run."""
    if clock is not None:
        if stragglers is not None and (stragglers.count or stragglers.periods):
            raise UserError("choose stragglers or clock, not both")
        return _clocked(clients, rounds, seed, participation, clock, asynchronous)
    stragglers = stragglers or Stragglers()
    slow = stragglers.of(clients)
    if slow and not asynchronous and stragglers.cycle in ("code", "paper"):
        raise UserError(
            f"stragglers.cycle '{stragglers.cycle}' delivers late work but this method does not "
            "use late work; set stragglers.cycle=discard, or take an asynchronous method"
        )
    turns = []
    out: dict[int, int] = {}
    for t in range(rounds):
        start = [i for i in participation.draw(clients, seed, t) if i not in slow]
        arrive = dict.fromkeys(start, t)
        lost = []
        for i, period in slow.items():
            pattern = stragglers.pattern(period, asynchronous)
            mark = pattern[t % len(pattern)]
            if mark in "TLB":
                start.append(i)
            if mark == "T":
                out[i] = t
            elif mark == "L":
                lost.append(i)
            elif mark == "B":
                arrive[i] = t
            # Work still out in the last round is delivered then, as the authors' program does.
            elif i in out and (mark == "U" or t == rounds - 1):
                arrive[i] = out.pop(i)
        turns.append(Turn(sorted(start), dict(sorted(arrive.items())), lost))
    return turns


def _clocked(
    clients: Sequence[int],
    rounds: int,
    seed: int,
    participation: Participation,
    clock: Clock,
    asynchronous: bool,
) -> list[Turn]:
    now, turns = 0.0, []
    running: dict[int, tuple[float, int]] = {}  # client -> (time it is done, round it started)
    jobs = dict.fromkeys(clients, 0)
    for t in range(rounds):
        start = [i for i in participation.draw(clients, seed, t) if i not in running]
        for i in start:
            running[i] = (now + clock.duration(i, jobs[i], seed), t)
            jobs[i] += 1
        now += clock.window
        if clock.arrivals and running:
            done = sorted(end for end, _ in running.values())
            now = done[min(clock.arrivals, len(done)) - 1]
        back = {i: s for i, (end, s) in sorted(running.items()) if end <= now}
        for i in back:
            del running[i]
        kept = {i: s for i, s in back.items() if asynchronous or s == t}  # late work is dropped
        turns.append(Turn(start, kept, []))
    return turns if asynchronous else [_drop_unreceived(t, turns) for t in range(len(turns))]


def _drop_unreceived(t: int, turns: list[Turn]) -> Turn:
    """For a synchronous method: what does not arrive in its own round never does."""
    turn = turns[t]
    return Turn(turn.start, turn.arrive, [i for i in turn.start if i not in turn.arrive])


def load_schedule(path: str | Path) -> list[Turn]:
    """A recorded schedule: JSON, a list with one entry a round, either client ids or
    {"start": [ids], "arrive": [[id, round started]]}, rounds from 1; or a run's events.jsonl."""
    path = Path(path)
    try:
        text = path.read_text()
    except OSError as error:
        raise UserError(f"cannot read schedule '{path}': {error.strerror}") from None
    try:
        if path.suffix == ".jsonl":
            return _from_events([json.loads(line) for line in text.splitlines() if line.strip()])
        rounds = json.loads(text)
        return schedule_from(rounds["rounds"] if isinstance(rounds, dict) else rounds)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"schedule '{path}' is not a list of rounds ({error}); "
            'each is a list of client ids or {"start": [ids], "arrive": [[id, round]]}'
        ) from None


def schedule_from(rounds: Sequence[Any]) -> list[Turn]:
    """Turns from lists of client ids, or dicts with `start` and `arrive` (rounds from 1)."""
    turns: list[Turn] = []
    out: dict[int, int] = {}
    for t, entry in enumerate(rounds):
        if isinstance(entry, Turn):
            turns.append(entry)
            continue
        if isinstance(entry, dict):
            start = sorted(int(i) for i in entry["start"])
            arrive = {int(i): int(s) - 1 for i, s in entry["arrive"]}
        else:
            start = sorted(int(i) for i in entry)
            arrive = dict.fromkeys(start, t)
        if len(set(start)) < len(start):
            raise ValueError(f"round {t + 1} names a client twice")
        for i in start:
            if i in out:  # it began anew, so what it had out never arrived
                turns[out[i]].lost.append(i)
            out[i] = t
        for i, s in arrive.items():
            if out.pop(i, None) != s:
                raise ValueError(
                    f"client {i} arrives in round {t + 1} but did not start in {s + 1}"
                )
        turns.append(Turn(start, dict(sorted(arrive.items()))))
    return turns


def _from_events(events: list[dict[str, Any]]) -> list[Turn]:
    rounds = [e for e in events if e.get("round", 0) >= 1]
    return schedule_from(
        [
            {
                "start": e["started"],
                "arrive": [
                    [i, e["round"] - s] for i, s in zip(e["arrived"], e["staleness"], strict=True)
                ],
            }
            for e in rounds
        ]
    )
