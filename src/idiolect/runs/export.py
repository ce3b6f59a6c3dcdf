"""Trained models as plain safetensors files, one folder per exported round.

`models/round_0003/server.safetensors`, `models/round_0003/client_0000.safetensors`, …; names inside
are those of the plain nn.Module's state dict.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from idiolect.core import files

When = Literal["every", "last", "best"]


class ModelExport:
    """Writes `models/` as `--save-models` asks; does nothing when it does not."""

    def __init__(self, folder: Path, when: When | None) -> None:
        self.folder = folder
        self.when = when
        self.best: float | None = None

    def round_done(self, sim: Any, round: int, clients: int, score: float | None) -> None:
        """Called after every round with the value the best round is chosen by."""
        if self.when == "every":
            self._write(sim, round, clients, f"round_{round:04d}")
        # Round 0 is the starting point: nobody trained it.
        elif self.when == "best" and round > 0 and self.improves(score):
            self._write(sim, round, clients, "best")

    def improves(self, score: float | None) -> bool:
        if score is None or (self.best is not None and score <= self.best):
            return False
        self.best = score
        return True

    def finished(self, sim: Any, round: int, clients: int) -> None:
        if self.when == "last":
            self._write(sim, round, clients, "last")

    def resume(self, until: int, scores: Mapping[int, float | None]) -> None:
        """Forget exports of rounds that will be run again; recall the best so far."""
        for path in self.folder.glob("round_*"):
            if int(path.name.removeprefix("round_")) > until:
                shutil.rmtree(path)
        best, old = self.folder / "best", self.folder / ".best.old"
        if old.exists() and not best.exists():
            os.rename(old, best)
        for score in (score for round, score in scores.items() if round > 0):
            self.improves(score)

    def _write(self, sim: Any, round: int, clients: int, name: str) -> None:
        draft, final, old = (self.folder / n for n in (f".{name}.new", name, f".{name}.old"))
        for leftover in (draft, old):
            shutil.rmtree(leftover, ignore_errors=True)
        draft.mkdir(parents=True)
        server = sim.server_model()
        if server is not None:
            files.write_tensors(draft / "server.safetensors", server)
        for client in range(clients):
            path = draft / f"client_{client:04d}.safetensors"
            files.write_tensors(path, sim.personal_model(client))
        files.write_json(draft / "round.json", {"round": round})
        if final.exists():
            os.rename(final, old)
        os.rename(draft, final)
        shutil.rmtree(old, ignore_errors=True)
