"""Which of several ways to compute the same is fastest here, measured once and remembered.

The choice is kept in a file of the user's cache folder, by GPU and versions: ways differ in the
last bits of their results, and a repeated or resumed run on the same machine should take the same.
"""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from idiolect.core import files

TIMED_REPEATS = 3
CALLS_PER_REPEAT = 4
MAX_SLOWDOWN_TO_REPEAT = 3  # against the fastest so far; slower ways are timed only once


class Autotuner:
    """Knows the fastest way in each case."""

    def __init__(self) -> None:
        self._known: dict[Any, str] = {}

    def fastest(
        self, case: Any, ways: Mapping[str, Callable[..., Any]], args: tuple[Any, ...]
    ) -> str:
        """The name of the fastest way; `args` are what it will be called with, on a GPU."""
        if len(ways) == 1:
            return next(iter(ways))
        if case not in self._known:
            name = f"{torch.cuda.get_device_name()} torch {torch.__version__} {case}"
            if self._file.get(name) not in ways:
                self._file[name] = _measured(ways, args)
                self._save()
            self._known[case] = self._file[name]
        return self._known[case]

    @cached_property
    def _file(self) -> dict[str, str]:
        """What earlier processes found; a damaged file is measured anew."""
        with suppress(OSError, ValueError):
            found = json.loads(self._path.read_text(encoding="utf-8"))
            if isinstance(found, dict):
                return {str(k): str(v) for k, v in found.items()}
        return {}

    @property
    def _path(self) -> Path:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(home) / "idiolect" / "routes.json"

    def _save(self) -> None:
        """A cache that cannot be written is measured again next time."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(self._path, self._file)


AUTOTUNER = Autotuner()


def about(shape: torch.Size) -> tuple[int, ...]:
    """Clients and batch to the next power of two: close sizes share a choice."""
    return *((n - 1).bit_length() for n in shape[:2]), *shape[2:]


def _measured(ways: Mapping[str, Callable[..., Any]], args: tuple[Any, ...]) -> str:
    """Time every way on these arguments; its first call is a warm-up."""
    times: dict[str, float] = {}
    for name, way in ways.items():
        way(*args)
        times[name] = _span(way, args, 1)
        if times[name] <= MAX_SLOWDOWN_TO_REPEAT * min(times.values()):
            times[name] = min(_span(way, args, CALLS_PER_REPEAT) for _ in range(TIMED_REPEATS))
    return min(times, key=lambda name: times[name])


def _span(way: Callable[..., Any], args: tuple[Any, ...], calls: int) -> float:
    """Milliseconds of one call."""
    begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
    begin.record()
    for _ in range(calls):
        way(*args)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls
