"""The board of recipes: what is done, running and missing of every paper's table, and verdicts.

Settings of thousands of cells are resolved for it, which takes a minute: it is done in the
background, recipe by recipe, and again only where a recipe's results changed.
"""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

from idiolect.core.text import shortened
from idiolect.errors import UserError
from idiolect.ui.run_index import held_locks, is_held

CELLS_SHOWN = 2000  # little squares of one recipe


class RecipeBoard:
    """The state of every recipe, by its folder of results."""

    def __init__(self, results: Path, runs: Path) -> None:
        self.results, self.runs = results, runs
        self._known: dict[str, tuple[tuple[float, ...], dict[str, Any]]] = {}
        self._parts: dict[str, Any] = {}
        self._counting = threading.Lock()

    def __call__(self) -> list[dict[str, Any]]:
        """What is known by now; what is not is being counted."""
        from idiolect.papers import recipe

        if self._counting.acquire(blocking=False):
            threading.Thread(target=self._count, daemon=True).start()
        held = held_locks()
        return [self._card(name, held) for name in recipe.names()]

    def _count(self) -> None:
        from idiolect.papers import recipe

        try:
            for name in recipe.names():
                stamp = self._stamp(name)
                if name not in self._known or self._known[name][0] != stamp:
                    self._known[name] = (stamp, self._told(name))
        finally:
            self._counting.release()

    def _stamp(self, name: str) -> tuple[float, ...]:
        """Changes when the recipe's results do."""
        files = (self.results / name / file for file in ("runs.jsonl", "failed.json"))
        return tuple(file.stat().st_mtime if file.exists() else 0.0 for file in files)

    def _told(self, name: str) -> dict[str, Any]:
        from idiolect.papers import recipe
        from idiolect.papers.campaign import Campaign

        try:
            read = recipe.read(name)
            (part,) = Campaign([read], self.results, self.runs).parts
            counts = part.counts()
        except (UserError, OSError) as error:
            self._parts.pop(name, None)
            return {"title": "", "cells": [], "told": shortened(error, 200), "verdicts": ""}
        self._parts[name] = part
        hold, fail = counts["hold"], counts["do not hold"]
        return {
            "title": read.title,
            "done": counts["done"],
            "nodata": counts["no data"] + counts["cannot run"],
            "verdicts": f"{counts['claims']} claims: {hold} hold, {fail} do not, "
            f"{counts['open']} not enough evidence",
        }

    def _card(self, name: str, held: set[tuple[int, int]]) -> dict[str, Any]:
        if name not in self._known:
            return {"name": name, "title": "", "cells": [], "told": "is being counted"} | {
                "verdicts": "", "counting": True
            }  # fmt: skip
        about = self._known[name][1]
        part = self._parts.get(name)
        if part is None:
            return {"name": name, **about}
        states = ["done"] * about["done"]
        for job in part.found.jobs:
            going = [is_held(Path(out) / ".lock", held) for out in job.outs]
            states += ["running" if one else "missing" for one in going]
        states += ["missing"] * len(part.found.waiting) + ["nodata"] * about["nodata"]
        counts = Counter(states)
        told = ", ".join(f"{counts[key]} {word}" for key, word in WORDS.items() if counts[key])
        shown = sorted(states, key=list(WORDS).index)[:CELLS_SHOWN]
        return {"name": name, "title": about["title"], "cells": shown, "told": told} | {
            "verdicts": about["verdicts"]
        }


WORDS = {"done": "done", "running": "running", "missing": "missing", "nodata": "without data"}
