"""Trained models as plain safetensors files, one folder per exported round.

`models/round_0003/server.safetensors`, `models/round_0003/client_0000.safetensors`, …; names inside
are those of the plain nn.Module's state dict. With adapters (`model.adapt`) what all clients share,
frozen, is there once, `base.safetensors`, and the other files hold what trained.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from idiolect.core import files, tree
from idiolect.errors import UserError
from idiolect.simulation.starting_weights import BASE

When = Literal["every", "last", "best"]
FILES = ("server.safetensors", "client_*.safetensors", BASE, "round.json")  # of one export
_EXPORT = re.compile(r"round_(?P<round>\d{4,})|last|best")
_UNFINISHED = re.compile(rf"\.({_EXPORT.pattern})\.(new|old)")


class ModelExport:
    """Writes `models/` as `--save-models` asks; does nothing when it does not."""

    def __init__(self, folder: Path, when: When | None, adapters: bool = False) -> None:
        self.folder, self.when, self.adapters = folder, when, adapters
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

    def check(self, until: int) -> None:
        """Refuse to go on where `resume` would meet something that is not of the run."""
        for path in self._doomed(until):
            _check(path)

    def resume(self, until: int, scores: Mapping[int, float | None]) -> None:
        """Forget exports of rounds that will be run again; recall the best so far."""
        best, old = self.folder / "best", self.folder / ".best.old"
        if old.exists() and not best.exists():
            os.rename(old, best)
        for path in self._doomed(until):
            _delete(path)
        for score in (score for round, score in scores.items() if round > 0):
            self.improves(score)

    def _doomed(self, until: int) -> list[Path]:
        """Exports of later rounds, and unfinished ones."""
        found = []
        for path in sorted(self.folder.iterdir()) if self.folder.exists() else ():
            export = _EXPORT.fullmatch(path.name)
            later = export and export["round"] and int(export["round"]) > until
            kept = path.name == ".best.old" and not (self.folder / "best").exists()
            if later or (_UNFINISHED.fullmatch(path.name) and not kept):
                found.append(path)
        return found

    def _write(self, sim: Any, round: int, clients: int, name: str) -> None:
        draft, final, old = (self.folder / n for n in (f".{name}.new", name, f".{name}.old"))
        for leftover in (draft, old):
            _delete(leftover)
        draft.mkdir(parents=True)
        base = sim.frozen_part() if self.adapters else {}
        if base:
            files.write_tensors(draft / BASE, base)
        server = sim.server_model()
        if server is not None:
            files.write_tensors(draft / "server.safetensors", tree.drop(server, base))
        for client in range(clients):
            path = draft / f"client_{client:04d}.safetensors"
            files.write_tensors(path, tree.drop(sim.personal_model(client), base))
        files.write_json(draft / "round.json", {"round": round})
        if final.exists():
            os.rename(final, old)
        os.rename(draft, final)
        files.sync_folder(self.folder)
        _delete(old)


def _delete(export: Path) -> None:
    """Delete one export: the files that an export has, and nothing else."""
    if files.kind(export) is None:
        return
    _check(export)
    files.remove_drafts(export, *FILES)
    for entry in list(os.scandir(export)):
        os.unlink(entry.path)
    export.rmdir()


def _check(export: Path) -> None:
    if (found := files.kind(export)) != "a folder":
        raise UserError(f"{export} is {found}, not an export of the run; move it away")
    for entry in list(os.scandir(export)):
        whole = entry.is_file(follow_symlinks=False) or entry.name.endswith(files.ROOM)
        if entry.is_symlink() or not whole or not files.belongs(entry.name, *FILES):
            raise UserError(f"{entry.path} is not of the run, which must delete {export}; move it")
