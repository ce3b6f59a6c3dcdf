"""All runs below one folder: found quickly, kept up to date while they are written.

Links are never followed, so nothing outside the folder is read. A run that cannot be read is an
entry with its problem.
"""

import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from idiolect.core.own_code import called
from idiolect.core.task import metric_named
from idiolect.core.text import one_line, shortened
from idiolect.errors import UserError
from idiolect.runs import run_files
from idiolect.runs.directory import read_config
from idiolect.ui import run_tags
from idiolect.ui.event_tail import EventTail
from idiolect.ui.plain_files import check_run

DEPTH = 4  # folders below the runs directory
MOST_RUNS = 50_000
DAMAGE = (UserError, OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError,
          RecursionError)  # fmt: skip
ROUNDS_OF_PACE = 20  # the newest, from which the time to go is told
SCAN_SHARE = 20  # a scan of the folders takes at most one part in 20 of the time


@dataclass
class RunEntry:
    """One line of the list of runs."""

    id: str  # path below the runs directory, with slashes
    state: str = "unread"  # unread, running, stopped, finished, problem
    method: str = ""
    data: str = ""
    split: str = ""
    seed: int | None = None
    round: int = 0
    rounds: int = 0
    accuracy: float | None = None  # of the metric, which is accuracy where it is not said
    metric: str = "accuracy"
    tags: list[str] = field(default_factory=list)
    seconds: float | None = None  # of the rounds so far
    eta: float | None = None  # seconds to go
    changed: float = 0.0  # when its files last changed
    federation: bool = False  # over real sites
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "share": metric_named(self.metric).share}

    @property
    def goodness(self) -> float:
        """By which runs are sorted, the larger the better."""
        known = self.accuracy is not None
        return metric_named(self.metric).sign * (self.accuracy or 0.0) if known else -math.inf


class RunIndex:
    """The runs of one folder; every method may be called from any thread."""

    def __init__(self, root: Path, depth: int = DEPTH) -> None:
        self.root, self.depth = root.resolve(), depth
        self.entries: dict[str, RunEntry] = {}
        self.truncated = False
        self._tails: dict[str, EventTail] = {}
        self._ends: dict[str, deque[float]] = {}  # of an entry's newest rounds, by the clock
        self._changed: dict[str, float] = {}  # as the last scan found config.yaml and summary.json
        self.version = 0  # counts the looks that found a change
        self._touched: dict[str, int] = {}  # version of an entry's last change
        self._lock = threading.RLock()
        self._next_scan = 0.0

    def path(self, id: str) -> Path:
        """The folder of a run; UserError for anything that is not a known run."""
        with self._lock:
            if id not in self.entries and not self._single(id):
                raise UserError(f"no run '{one_line(id)}' below {self.root.name}")
        return self.root / id

    def state(self, id: str) -> str:
        """The state of a known run, as it is now."""
        self.refresh(force=True)
        return self.details([id])[0].state if id in self.entries else "gone"

    def _single(self, id: str) -> bool:
        self.refresh(force=True)
        return id in self.entries

    def refresh(self, force: bool = False) -> None:
        """Look for new runs and new rounds."""
        with self._lock:
            scans = force or time.monotonic() >= self._next_scan
            changed = self._scan() if scans else []
            held = held_locks()
            for entry in list(self.entries.values()):
                stopped = entry.state == "stopped"
                goes_on = stopped and (scans or is_held(self.root / entry.id / ".lock", held))
                if (entry.state == "running" or goes_on) and self._follow(entry, held):
                    changed.append(entry.id)
            if changed:
                self.version += 1
                self._touched.update(dict.fromkeys(changed, self.version))

    def changes(self, since: int) -> tuple[int, list[str]]:
        """The version now, and the ids of the entries that changed or went since that version."""
        with self._lock:
            return self.version, [id for id, at in self._touched.items() if at > since]

    def details(self, ids: list[str]) -> list[RunEntry]:
        """These entries, read if they were not yet."""
        with self._lock:
            held = held_locks()
            for id in ids:
                if self.entries[id].state == "unread":
                    self._read(self.entries[id], held)
            return [self.entries[id] for id in ids]

    def tag(self, id: str, text: str) -> list[str]:
        """Give a run these tags, for every open page to see."""
        folder = self.path(id)
        with self._lock:
            (entry,) = self.details([id])
            entry.tags = run_tags.write(folder, text)
            self.version += 1
            self._touched[id] = self.version
            return entry.tags

    def read_some(self, most: int = 200) -> int:
        """Read entries not read yet; how many still are not."""
        with self._lock:
            unread = [e.id for e in self.entries.values() if e.state == "unread"]
            self.details(unread[:most])
            return max(0, len(unread) - most)

    def _scan(self) -> list[str]:
        began = time.monotonic()
        found: dict[str, float] = {}
        self.truncated = False
        for id, changed in _runs_below(self.root, self.depth):
            found[id] = changed
            if len(found) >= MOST_RUNS:
                self.truncated = True
                break
        gone = [id for id in self.entries if id not in found]
        for id in gone:
            del self.entries[id]
            self._tails.pop(id, None)
            self._ends.pop(id, None)
            self._changed.pop(id, None)
        fresh = []
        for id, changed in found.items():
            known = self.entries.get(id)
            moved = changed != self._changed.get(id)
            if known is None or (moved and known.state != "running"):
                self.entries[id] = RunEntry(id, changed=changed)
                self._tails.pop(id, None)
                self._changed[id] = changed
                fresh.append(id)
        took = time.monotonic() - began
        self._next_scan = time.monotonic() + max(1.0, SCAN_SHARE * took)
        return fresh + gone

    def _read(self, entry: RunEntry, held: set[tuple[int, int]]) -> None:
        folder = self.root / entry.id
        try:
            entry.id.encode()  # ValueError: a name that is no text cannot be asked for
            check_run(folder)
            config = run_files.plain_config(read_config(folder), Path("config.yaml"))
            method, *others = (config[key]["name"] for key in ("method", "data", "split"))
            sections = (called(method), *others)
            entry.method, entry.data, entry.split = (shortened(name, 80) for name in sections)
            entry.seed, entry.rounds = config["seed"], config["rounds"]
            entry.federation = (folder / "flower" / "terms.json").exists()
            entry.state, entry.tags = "stopped", run_tags.read(folder)
            self._tails[entry.id] = EventTail(folder / "events.jsonl")
            self._ends[entry.id] = deque(maxlen=ROUNDS_OF_PACE + 1)
            summary = folder / "summary.json"
            if summary.exists():
                done = json.loads(summary.read_bytes())
                entry.round, entry.state = int(done["rounds"]), "finished"
                entry.accuracy = _number(done["accuracy"]["last"]["mean"])
                entry.metric = _metric(done)
                entry.seconds = _number(done["seconds"])
            else:
                self._follow(entry, held)
        except DAMAGE as error:
            self._refuse(entry, error)

    def _refuse(self, entry: RunEntry, error: Exception) -> None:
        told = str(error).replace(f"{self.root}/", "")  # nobody needs the folders of this machine
        entry.state, entry.problem, entry.eta = "problem", shortened(told, 300), None

    def _follow(self, entry: RunEntry, held: set[tuple[int, int]]) -> bool:
        """Read the new rounds of an unfinished run; whether anything changed."""
        before = entry.as_dict()
        folder = self.root / entry.id
        anew, events = self._tails[entry.id].fresh()
        if anew:
            entry.round, entry.accuracy, entry.seconds = 0, None, None
            self._ends[entry.id].clear()
        try:
            for event in events:
                run_files.checked_event(event, "events.jsonl")
                entry.round, entry.metric = event["round"], _metric(event)
                mean = event["accuracy"]["mean"]
                entry.accuracy = entry.accuracy if mean is None else mean
                entry.seconds = (entry.seconds or 0.0) + event["seconds"]
                if (ended := _number(event.get("time"))) is not None:
                    self._ends[entry.id].append(ended)
        except DAMAGE as error:
            self._refuse(entry, error)
            return True
        entry.state = "running" if is_held(folder / ".lock", held) else "stopped"
        if (folder / "summary.json").exists() and entry.state != "running":
            self._read(entry, held)
        pace = _pace(self._ends[entry.id]) if entry.state == "running" else None
        entry.eta = None if pace is None else (entry.rounds - entry.round) * pace
        entry.changed = max(entry.changed, self._tails[entry.id].changed)
        return entry.as_dict() != before


def _runs_below(root: Path, deepest: int) -> Iterator[tuple[str, float]]:
    """Folders with a config.yaml, and when they last changed; links are not followed."""
    todo: list[tuple[str, int]] = [("", 0)]
    while todo:
        below, depth = todo.pop()
        try:
            with os.scandir(root / below) as found:
                children = list(found)
        except OSError:
            continue
        names = {child.name: child for child in children}
        if "config.yaml" in names and depth > 0:
            with_times = [names[n] for n in ("summary.json", "config.yaml") if n in names]
            yield below, max(_changed(child) for child in with_times)
        elif depth < deepest:
            for child in children:
                if child.is_dir(follow_symlinks=False) and not child.name.startswith("."):
                    todo.append((f"{below}/{child.name}" if below else child.name, depth + 1))


def _changed(child: "os.DirEntry[str]") -> float:
    try:
        return child.stat(follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def held_locks() -> set[tuple[int, int]]:
    """(device, inode) of every file that some process holds a lock on; found without taking any
    lock, which could hinder a run that is just starting."""
    held: set[tuple[int, int]] = set()
    try:
        lines = Path("/proc/locks").read_text(encoding="utf-8").splitlines()
    except OSError:
        return held
    for line in lines:
        parts = line.split()
        if "FLOCK" in parts and "->" not in parts:
            major, minor, inode = parts[-3].split(":")
            held.add((os.makedev(int(major, 16), int(minor, 16)), int(inode)))
    return held


def is_held(lock: Path, held: set[tuple[int, int]]) -> bool:
    try:
        about = lock.lstat()
    except OSError:
        return False
    return (about.st_dev, about.st_ino) in held


def _pace(ends: Sequence[float]) -> float | None:
    """Seconds from one round to the next, by the clock: runs that share a stack have a part of its
    seconds each, and wait for the others. The median, as a run may have been stopped meanwhile."""
    gaps = [later - earlier for earlier, later in pairwise(ends)]
    return median(gaps) if gaps else None


def _metric(about: dict[str, Any]) -> str:
    """The name of what an event or summary holds under `accuracy`."""
    section = about.get("metric", {})
    return metric_named(section.get("name", "accuracy")).name


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
