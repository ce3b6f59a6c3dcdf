"""All runs below one folder: found quickly, kept up to date while they are written.

Links are never followed, so nothing outside the folder is read. A run that cannot be read is an
entry with its problem.
"""

import json
import os
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from idiolect.core.text import one_line
from idiolect.errors import UserError
from idiolect.runs.directory import read_config
from idiolect.ui.event_tail import EventTail

DEPTH = 4  # folders below the runs directory
MOST_RUNS = 50_000
LARGEST_SMALL_FILE = 4 << 20  # bytes of a config.yaml or summary.json
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
    accuracy: float | None = None
    seconds: float | None = None  # of the rounds so far
    eta: float | None = None  # seconds to go
    changed: float = 0.0  # when its files last changed
    federation: bool = False  # over real sites
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class RunIndex:
    """The runs of one folder; every method may be called from any thread."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.entries: dict[str, RunEntry] = {}
        self.truncated = False
        self._tails: dict[str, EventTail] = {}
        self._lock = threading.RLock()
        self._next_scan = 0.0

    def path(self, id: str) -> Path:
        """The folder of a run; UserError for anything that is not a known run."""
        with self._lock:
            if id not in self.entries and not self._single(id):
                raise UserError(f"no run '{one_line(id)}' below {self.root}")
        return self.root / id

    def _single(self, id: str) -> bool:
        self.refresh(force=True)
        return id in self.entries

    def refresh(self, force: bool = False) -> list[str]:
        """Look for new runs and new rounds; ids of the entries that changed."""
        with self._lock:
            changed = []
            if force or time.monotonic() >= self._next_scan:
                changed += self._scan()
            held = held_locks()
            for entry in list(self.entries.values()):
                live = entry.state in ("running", "stopped")
                if live and self._follow(entry, held):
                    changed.append(entry.id)
            return list(dict.fromkeys(changed))

    def details(self, ids: list[str]) -> list[RunEntry]:
        """These entries, read if they were not yet."""
        with self._lock:
            held = held_locks()
            for id in ids:
                if self.entries[id].state == "unread":
                    self._read(self.entries[id], held)
            return [self.entries[id] for id in ids]

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
        for id, changed in _runs_below(self.root):
            found[id] = changed
            if len(found) >= MOST_RUNS:
                self.truncated = True
                break
        gone = [id for id in self.entries if id not in found]
        for id in gone:
            del self.entries[id]
            self._tails.pop(id, None)
        fresh = []
        for id, changed in found.items():
            known = self.entries.get(id)
            if known is None or (changed != known.changed and known.state != "running"):
                self.entries[id] = RunEntry(id, changed=changed)
                self._tails.pop(id, None)
                fresh.append(id)
        took = time.monotonic() - began
        self._next_scan = time.monotonic() + max(1.0, SCAN_SHARE * took)
        return fresh + gone

    def _read(self, entry: RunEntry, held: set[tuple[int, int]]) -> None:
        folder = self.root / entry.id
        try:
            for name in ("config.yaml", "summary.json"):
                if (folder / name).exists() and small_file(folder / name) is None:
                    raise UserError(f"{name} is no small plain file")
            config = read_config(folder)
            sections = {key: config[key] for key in ("method", "data", "split")}
            named = {key: one_line(str(value["name"])) for key, value in sections.items()}
            entry.method, entry.data, entry.split = (named[k] for k in sections)
            entry.seed, entry.rounds = int(config["seed"]), int(config["rounds"])
            entry.federation = (folder / "flower" / "terms.json").exists()
            entry.state = "stopped"
            self._tails[entry.id] = EventTail(folder / "events.jsonl")
            summary = folder / "summary.json"
            if summary.exists():
                done = json.loads(summary.read_bytes())
                entry.round, entry.state = int(done["rounds"]), "finished"
                entry.accuracy = _number(done["accuracy"]["last"]["mean"])
                entry.seconds = _number(done["seconds"])
            else:
                self._follow(entry, held)
        except (UserError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            entry.state, entry.problem = "problem", one_line(f"{error}")[:300]

    def _follow(self, entry: RunEntry, held: set[tuple[int, int]]) -> bool:
        """Read the new rounds of an unfinished run; whether anything changed."""
        before = entry.as_dict()
        folder = self.root / entry.id
        anew, events = self._tails[entry.id].fresh()
        if anew:
            entry.round, entry.accuracy, entry.seconds = 0, None, None
        for event in events:
            entry.round = int(event.get("round", entry.round))
            stats = event.get("accuracy")
            value = _number(stats.get("mean")) if isinstance(stats, dict) else None
            entry.accuracy = entry.accuracy if value is None else value
            entry.seconds = (entry.seconds or 0.0) + (_number(event.get("seconds")) or 0.0)
        entry.state = "running" if _is_held(folder / ".lock", held) else "stopped"
        if (folder / "summary.json").exists() and entry.state != "running":
            self._read(entry, held)
        pace = (entry.seconds or 0.0) / max(1, entry.round)
        entry.eta = (entry.rounds - entry.round) * pace if entry.state == "running" else None
        if events or anew:
            entry.changed = time.time()
        return entry.as_dict() != before


def _runs_below(root: Path) -> Iterator[tuple[str, float]]:
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
        elif depth < DEPTH:
            for child in children:
                if child.is_dir(follow_symlinks=False) and not child.name.startswith("."):
                    todo.append((f"{below}/{child.name}" if below else child.name, depth + 1))


def _changed(child: "os.DirEntry[str]") -> float:
    try:
        return child.stat(follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def small_file(path: Path) -> int | None:
    """Size of a plain file that may be read whole; None for a link, a device or a giant."""
    try:
        about = path.lstat()
    except OSError:
        return None
    sound = stat.S_ISREG(about.st_mode) and about.st_size <= LARGEST_SMALL_FILE
    return about.st_size if sound else None


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


def _is_held(lock: Path, held: set[tuple[int, int]]) -> bool:
    try:
        about = lock.lstat()
    except OSError:
        return False
    return (about.st_dev, about.st_ino) in held


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value == value else None
