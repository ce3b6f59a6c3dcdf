"""A client's private state on its disk.

One file per experiment holds the state after the last training and the answer that was given for it
(and, if late work rejoined, the state and answer of that). Before an answer leaves, the file is
replaced in one step (temporary file, sync, rename), so at any moment the disk holds a whole state
and the answer that belongs to it. A repeated request is answered from the file and trains nothing.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from idiolect.core import files, tree
from idiolect.core.tree import Record
from idiolect.errors import UserError


@dataclass
class CommittedWork:
    """The private state after one piece of work, and the answer that was given for it."""

    version: int  # round, from 0; -1 before any training
    mine: Record = field(default_factory=dict)
    up: Record = field(default_factory=dict)
    answer: dict[str, Any] = field(default_factory=dict)
    kept: Record = field(default_factory=dict)  # what optimizers remember, if they do


@dataclass
class ClientState:
    """All that a client keeps of one experiment."""

    client: int
    fitted: CommittedWork
    rejoined: CommittedWork | None = None
    settings: str = ""  # digest of the experiment's settings; "": begun by an older version

    @property
    def mine(self) -> Record:
        return (self.rejoined or self.fitted).mine


class StateStore:
    """The states of all experiments a client takes part in, under one folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise UserError(
                f"cannot write to {folder}: {error.strerror}; choose another --state"
            ) from None
        files.remove_drafts(folder, "*.safetensors")

    @staticmethod
    def checked(experiment: str) -> str:
        """Refuse anything but an id: the name comes over the network and becomes a file name."""
        if not re.fullmatch(r"[0-9a-f]{8,64}", experiment):
            raise ValueError(f"{experiment[:70]!r} is not an experiment id")
        return experiment

    def path(self, experiment: str) -> Path:
        return self.folder / f"{self.checked(experiment)}.safetensors"

    def load(self, experiment: str) -> ClientState | None:
        """The state on disk; None at the first contact."""
        from safetensors.torch import load_file

        path = self.path(experiment)
        if not path.exists():
            return None
        try:
            parts = tree.nest(load_file(path))
            about = json.loads(bytes(parts.pop("about").tolist()))
            fitted = _committed_work(about["fitted"], parts.get("fitted", {}))
            rejoined = about["rejoined"]
            if rejoined is not None:
                rejoined = _committed_work(rejoined, parts.get("rejoined", {}))
            return ClientState(about["client"], fitted, rejoined, about.get("settings", ""))
        except OSError:
            raise
        except Exception as error:  # a damaged file may fail anywhere
            raise UserError(
                f"{path.name} in the site's state folder is damaged ({type(error).__name__}); "
                "restore it from a copy, or move it away to begin this experiment anew"
            ) from None

    def commit(self, experiment: str, state: ClientState) -> None:
        """Write the state to disk before this returns; an OSError leaves the old one as it was."""
        works = {"fitted": state.fitted}
        about: dict[str, Any] = {
            "client": state.client,
            "rejoined": None,
            "settings": state.settings,
        }
        if state.rejoined is not None:
            works["rejoined"] = state.rejoined
        record: Record = {}
        for name, work in works.items():
            about[name] = {"version": work.version, "answer": work.answer}
            kept = {"kept": work.kept} if work.kept else {}
            record[name] = {"mine": work.mine, "up": work.up, **kept}
        # The JSON is a leaf of the same file: one rename commits both.
        record["about"] = torch.tensor(list(json.dumps(about).encode()), dtype=torch.uint8)
        files.write_tensors(self.path(experiment), tree.leaves(record), private=True)


def _committed_work(about: dict[str, Any], parts: Record) -> CommittedWork:
    mine, up, kept = (parts.get(name, {}) for name in ("mine", "up", "kept"))
    return CommittedWork(int(about["version"]), mine, up, dict(about["answer"]), kept)
