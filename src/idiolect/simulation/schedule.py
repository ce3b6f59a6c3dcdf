"""Who starts in each round, and whose work arrives: participation, stragglers, a virtual clock.

A schedule is a list of turns worked out before the run from its settings and seed alone, so a
resumed run continues the same one. Rounds count from 0 here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from idiolect.core.fields import Checked, hyper
from idiolect.errors import UserError

if TYPE_CHECKING:
    from numpy.random import Generator

LARGEST_FILE = 50_000_000  # characters of a recorded schedule
LONGEST = 1_000_000  # rounds: all of them are worked out before the first


@dataclass(frozen=True)
class Turn:
    """One round: who downloads and trains, and whose work reaches the server (with its start)."""

    start: list[int] = field(default_factory=list)
    arrive: dict[int, int] = field(default_factory=dict)  # client -> round it started
    lost: list[int] = field(default_factory=list)  # of those who start: work nobody receives


@dataclass(frozen=True)
class Participation(Checked):
    """Who takes part in a round. Short forms: `0.5`, `binomial:0.5`, `full`."""

    section: ClassVar[str] = "participation"
    short: ClassVar[type | None] = str
    takes: ClassVar[str] = "a rate in (0, 1], binomial:RATE or full"

    kind: Literal["full", "fixed", "binomial"] = hyper(
        "fixed", "all clients, a fixed number of them, or each with a chance"
    )
    rate: float = hyper(1.0, "share of the clients, or the chance of each", above=0, max=1)

    @classmethod
    def of(cls, value: Any) -> Self:
        if value is None or value == "full":
            return cls("full")
        if isinstance(value, int | float) and not isinstance(value, bool):
            return cls("fixed", value)
        if isinstance(value, str):
            kind, colon, rate = value.partition(":")
            return cls(kind if colon else "fixed", float(rate if colon else value))  # type: ignore[arg-type]
        made = super().of(value)
        # A rate that was set later than `full` is meant.
        return replace(made, kind="fixed") if made.kind == "full" and made.rate != 1 else made

    def __str__(self) -> str:
        if self.kind == "full" or (self.kind == "fixed" and self.rate == 1):
            return "full"
        return f"binomial:{self.rate:g}" if self.kind == "binomial" else f"{self.rate:g}"

    def expected(self, clients: int) -> float:
        """How many of so many clients take part in a round: the number, or its mean."""
        if self.kind == "full" or self.rate == 1:
            return clients
        return self.rate * clients if self.kind == "binomial" else self._count(clients)

    def _count(self, clients: int) -> int:
        return max(1, int(self.rate * clients + 1e-9))

    def draw(self, clients: Sequence[int], seed: int, round: int) -> list[int]:
        """int(rate * N) clients without replacement, or each with probability `rate`."""
        if self.kind == "full" or self.rate == 1:
            return list(clients)
        draw = _keyed(seed, "participation", round)
        if self.kind == "binomial":
            return [
                i for i, u in zip(clients, draw.random(len(clients)), strict=True) if u < self.rate
            ]
        count = self._count(len(clients))
        return sorted(int(i) for i in draw.choice(list(clients), count, replace=False))


@dataclass(frozen=True)
class Stragglers(Checked):
    """Clients with fixed missing periods: straggler m (the m-th client) is away for m rounds.

    Cycles, with T train, U late upload, B train and upload, L train in vain:
    code `T ..(p-1).. U B` as the authors' program, paper `T ..(p-1).. U`, discard `..(p).. L B`
    where late work is thrown away. auto is code for asynchronous methods, discard for the others.
    For a method that uses no late work, paper is `B ..(p)..`: there in one round, away for p.
    Short form: their number.
    """

    section: ClassVar[str] = "stragglers"
    short: ClassVar[type | None] = int
    takes: ClassVar[str] = "a number of clients or a section with keys"

    count: int = hyper(0, "number of stragglers: clients 0, 1, …", min=0, needs="periods=()")
    cycle: Literal["auto", "code", "paper", "discard"] = hyper(
        "auto", "what a straggler's rounds are"
    )
    periods: tuple[int, ...] = hyper(
        (), "missing period of client 0, 1, …; 0 is on time", min=0, max=LONGEST
    )

    @classmethod
    def of(cls, value: Any) -> Self:
        if value is None:
            return cls()
        if isinstance(value, int) and not isinstance(value, bool):
            return cls(value)
        if isinstance(value, Mapping) and value.get("periods", ()) is None:
            value = {key: one for key, one in value.items() if key != "periods"}
        return super().of(value)

    def as_dict(self) -> dict[str, Any]:
        section = super().as_dict()
        if not self.periods:  # left out, so that configs written before it existed stay equal
            del section["periods"]
        return section

    def __str__(self) -> str:
        return str(self.count)

    def __bool__(self) -> bool:
        return bool(self.count or self.periods)

    def pattern(self, period: int, asynchronous: bool) -> str:
        cycle = self.cycle
        if cycle == "auto":
            cycle = "code" if asynchronous else "discard"
        if cycle == "discard":
            return "." * period + "LB"
        if cycle == "paper" and not asynchronous:
            return "B" + "." * period
        return "T" + "." * (period - 1) + ("UB" if cycle == "code" else "U")

    def missing_periods(self, clients: Sequence[int]) -> dict[int, int]:
        """Client -> missing period."""
        count = len(self.periods) or self.count
        if count > len(clients):
            raise UserError(
                f"{count} stragglers but only {len(clients)} clients take part; "
                "lower stragglers.count"
            )
        periods = self.periods or range(1, count + 1)
        return {i: p for i, p in zip(clients, periods, strict=False) if p > 0}


@dataclass(frozen=True)
class Clock(Checked):
    """Asynchronous arrival: clients differ in speed, and the server ends rounds at its own pace.

    Client i needs `exp(spread * N(0,1)) * exp(jitter * N(0,1))` units of virtual time for a job.
    """

    section: ClassVar[str] = "clock"
    takes: ClassVar[str] = "a section such as clock.window=1.0"

    window: float = hyper(1.0, "units of time a round lasts", above=0)
    arrivals: int = hyper(0, "a round ends once this many clients have reported; 0: by time", min=0)
    spread: float = hyper(0.5, "how much clients differ in speed", min=0)
    jitter: float = hyper(0.1, "how much a client's jobs differ in time", min=0)

    @classmethod
    def of(cls, value: Any) -> Self:
        return cls() if value is True else super().of(value)

    def duration(self, client: int, job: int, seed: int) -> float:
        speed = _keyed(seed, "clock/speed", client).normal() * self.spread
        noise = _keyed(seed, "clock/job", client, job).normal() * self.jitter
        return float(2.718281828459045 ** (speed + noise))


def _keyed(seed: int, *purpose: str | int) -> Generator:
    # Imported late: the command line shows these settings without loading NumPy.
    from idiolect.core import rng

    return rng.keyed(seed, *purpose)


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
        if stragglers:
            raise UserError("choose stragglers or clock, not both")
        return _clocked(clients, rounds, seed, participation, clock, asynchronous)
    stragglers = stragglers or Stragglers()
    slow = stragglers.missing_periods(clients)
    if slow and not asynchronous and stragglers.cycle == "code":
        raise UserError(
            "stragglers.cycle 'code' delivers late work but this method does not use late work; "
            "set stragglers.cycle=discard or paper, or take an asynchronous method"
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
    path, what = Path(path), f"schedule '{path}'"
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UserError(f"cannot read {what}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _no_schedule(what) from None
    if len(text) > LARGEST_FILE:
        raise UserError(f"{what} has more than {LARGEST_FILE} characters; give it fewer rounds")
    try:
        if path.suffix == ".jsonl":
            lines = [json.loads(line) for line in text.splitlines() if line.strip()]
            return schedule_from(_from_events(lines), what)
        rounds = json.loads(text)
        return schedule_from(rounds["rounds"] if isinstance(rounds, dict) else rounds, what)
    except (KeyError, TypeError, ValueError, RecursionError, AttributeError):
        raise _no_schedule(what) from None


def _no_schedule(what: str) -> UserError:
    form = 'each is a list of client ids or {"start": [ids], "arrive": [[id, round]]}'
    return UserError(f"{what} is not a list of rounds; {form}")


def schedule_from(rounds: Sequence[Any], what: str = "the schedule") -> list[Turn]:
    """Turns from lists of client ids, or dicts with `start` and `arrive` (rounds from 1)."""
    turns: list[Turn] = []
    out: dict[int, int] = {}
    try:
        for entry in rounds:
            turns.append(entry if isinstance(entry, Turn) else _turn(entry, turns, out, what))
    except (KeyError, TypeError, ValueError):
        raise _no_schedule(what) from None
    return turns


def _turn(entry: Any, turns: list[Turn], out: dict[int, int], what: str) -> Turn:
    """The next turn; `out`: client -> turn since which its work is out."""
    t = len(turns)
    if isinstance(entry, Mapping):
        start = sorted(index(i) for i in entry["start"])
        arrive = {index(i): index(s) - 1 for i, s in entry["arrive"]}
    else:
        start = sorted(index(i) for i in entry)
        arrive = dict.fromkeys(start, t)
    if len(set(start)) < len(start):
        raise UserError(f"{what}: round {t + 1} names a client twice")
    for i in start:
        if i in out:  # it began anew, so what it had out never arrived
            turns[out[i]].lost.append(i)
        out[i] = t
    for i, s in arrive.items():
        if out.pop(i, None) != s:
            raise UserError(
                f"{what}: client {i} arrives in round {t + 1} but did not start in {s + 1}"
            )
    return Turn(start, dict(sorted(arrive.items())))


def _from_events(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rounds = [e for e in events if e["round"] >= 1]
    return [
        {
            "start": e["started"],
            "arrive": [
                [i, e["round"] - s] for i, s in zip(e["arrived"], e["staleness"], strict=True)
            ],
        }
        for e in rounds
    ]


def has_stragglers(turns: list[Turn]) -> bool:
    """Whether somebody's work arrives late or never."""
    late = (s < t for t, turn in enumerate(turns) for s in turn.arrive.values())
    return any(turn.lost for turn in turns) or any(late)
