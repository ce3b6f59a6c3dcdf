"""What clients found when they tested, as the columns of the client table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect.core.tree import Tree
from idiolect.deploy.validate import SIZES
from idiolect.simulation.outcome import Round
from idiolect.simulation.scores import SERIES


class Scores:
    """The last known accuracy and loss of every client, by series and part."""

    def __init__(self, clients: int):
        self.clients = clients
        self._found = {
            f"{prefix}{what}_{series}": np.full(clients, np.nan)
            for prefix in ("", "val_")
            for what in ("accuracy", "loss")
            for series in (SERIES if not prefix else SERIES[:2])
        }

    def keep(
        self, client: int, series: str, metrics: Mapping[str, Any], sizes: Mapping[str, int]
    ) -> None:
        """Correct predictions and summed loss of one client's parts, checked before."""
        for part, prefix in (("test", ""), ("val", "val_")):
            if part not in metrics or (prefix and series == "global"):
                continue
            loss = metrics[part]["loss"]
            correct = metrics[part]["correct"] / sizes[part]
            self._found[f"{prefix}accuracy_{series}"][client] = correct
            mean = np.nan if loss is None else loss / sizes[part]
            self._found[f"{prefix}loss_{series}"][client] = mean

    def columns(
        self, sizes: Mapping[int, Mapping[str, int]], done: Round | None, blank: bool
    ) -> dict[str, np.ndarray]:
        """One row per client; `blank` where the round was not tested."""
        n = self.clients
        late = np.full(n, -1, dtype=np.int16)
        started, arrived = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
        if done is not None:
            late[done.arrived] = done.staleness
            started[done.started], arrived[done.arrived] = True, True
        columns: dict[str, np.ndarray] = {"client": np.arange(n, dtype=np.int32)}
        for part in SIZES:
            known = [sizes[i][part] if i in sizes else 0 for i in range(n)]
            columns[f"{part}_size"] = np.array(known, dtype=np.int32)
        columns |= {"started": started, "arrived": arrived, "staleness": late}
        columns["unseen"] = np.zeros(n, dtype=bool)
        nothing = np.full(n, np.nan)
        return columns | {k: nothing if blank else v.copy() for k, v in self._found.items()}

    def state(self) -> Tree:
        return {k: torch.from_numpy(v) for k, v in self._found.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._found = {k: state[k].numpy().copy() for k in self._found}


def stacked_logs(about: list[dict[str, Any]], dtype: torch.dtype) -> Tree:
    """What the method shows at each client, one row per client, where all show the same thing."""
    shown: Tree = {}
    logs = [meta.get("logs", {}) for meta in about]
    for name in logs[0] if logs else ():
        try:
            rows = [torch.tensor(each[name], dtype=dtype) for each in logs]
            shown[str(name)[:64]] = torch.cat(rows)
        except (KeyError, TypeError, ValueError, RuntimeError):
            continue  # not needed for learning, and it comes from outside
    return shown
