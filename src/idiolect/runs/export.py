"""Trained models as plain safetensors files, one folder per exported round.

`models/round_0003/server.safetensors`, `models/round_0003/client_0000.safetensors`, …; names inside
are those of the plain nn.Module's state dict.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from idiolect.core import files
from idiolect.errors import UserError

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


def load_init(path: Path) -> tuple[dict[str, Tensor] | None, dict[int, dict[str, Tensor]]]:
    """A starting point: one weights file, or a folder as exported (server and/or clients)."""
    if path.is_file():
        return _load(path), {}
    server = path / "server.safetensors"
    clients = {
        int(file.stem.removeprefix("client_")): _load(file)
        for file in sorted(path.glob("client_*.safetensors"))
        if file.stem.removeprefix("client_").isdigit()
    }
    if not server.exists() and not clients:
        raise UserError(
            f"init: {path} holds neither server.safetensors nor client_0000.safetensors files"
        )
    return (_load(server) if server.exists() else None), clients


def check_complete(
    given: Mapping[str, Tensor] | None, model: Mapping[str, Tensor], source: str
) -> None:
    """A starting point is whole: a weight left random by a slip in its name would go unnoticed."""
    if given is None:
        return
    for name in model:
        if name not in given and not name.endswith("num_batches_tracked"):
            raise UserError(f"init: {source} lacks the model's weight '{name}'")


def _load(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"init: {path} is not a readable safetensors file ({reason})") from None
