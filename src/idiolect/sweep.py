"""Several seeds of one method side by side: their clients train in one wider stack.

Every simulation keeps its own server, schedule and tests; only the local work of a round is done
together. Randomness is keyed by (seed, client), so the numbers are those of separate runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from idiolect import tree
from idiolect.engine.base import Engine, Window
from idiolect.federation import Federation
from idiolect.method import Down
from idiolect.rounds import Round, Simulation


class Sweep:
    """Simulations of the same method, model and length that take their rounds together."""

    def __init__(self, simulations: Sequence[Simulation]):
        self.simulations = list(simulations)
        first = self.simulations[0]
        keys: list[tuple[int, int]] = []
        self.offsets = []
        for one in self.simulations:
            self.offsets.append(len(keys))
            keys += one.engine.keys
        merged = _merged([one.federation for one in self.simulations])
        self.engine: Engine = type(first.engine)(
            merged,
            first.engine.net.module,
            seed=first.seed,
            device=first.device,
            dtype=first.dtype,
            keys=keys,
            away=isinstance(first.engine.data, Window),
        )

    @staticmethod
    def fits(simulations: Sequence[Simulation]) -> bool:
        """Whether they can share a stack: same method, same model, same round."""
        first = simulations[0]
        return len(simulations) > 1 and all(
            one.method == first.method
            and not one.method.one_by_one
            and one.engine.name == first.engine.name == "stacked"
            and _shapes(one) == _shapes(first)
            and one.rounds == first.rounds
            and one.round == first.round
            and one.federation.x.dtype == first.federation.x.dtype
            for one in simulations
        )

    def step(self) -> list[Round]:
        """One round of every simulation."""
        works = [one.begin() for one in self.simulations]
        busy = [w for w in works if w.turn.start]
        if not busy:
            return [one.finish(w, None) for one, w in zip(self.simulations, works, strict=True)]
        ids = [at + i for at, w in zip(self.offsets, works, strict=True) for i in w.turn.start]
        down = Down(each=tree.join([w.down.stacked(len(w.turn.start)) for w in busy]))
        mine = tree.join([w.mine for w in busy])
        first = self.simulations[0]
        fitted = self.engine.fit(first.method, down, mine, ids, first.round)
        done, at = [], 0
        for one, work in zip(self.simulations, works, strict=True):
            k = len(work.turn.start)
            done.append(one.finish(work, fitted.rows(at, at + k) if k else None))
            at += k
        # Local work was shared: each round is charged its part.
        whole = sum(r.seconds_eval for r in done)
        together = max(r.seconds for r in done) - whole
        return [replace(r, seconds=r.seconds_eval + max(together, 0.0) / len(done)) for r in done]


def _shapes(simulation: Simulation) -> dict[str, torch.Size]:
    return {n: v.shape for n, v in simulation.start_tree.items()}


def _merged(federations: Sequence[Federation]) -> Federation:
    """All clients of all federations over one table of samples, kept once where it is the same."""
    first = federations[0]
    tables: dict[int, int] = {}
    x, y, size = [], [], 0
    parts: dict[str, list[torch.Tensor]] = {"train": [], "val": [], "test": []}
    for one in federations:
        if one.x.data_ptr() not in tables:
            tables[one.x.data_ptr()] = size
            x.append(one.x)
            y.append(one.y)
            size += len(one.x)
        at = tables[one.x.data_ptr()]
        for part, rows in parts.items():
            rows += [index + at for index in getattr(one, part)]
    return replace(
        first,
        x=x[0] if len(x) == 1 else torch.cat(x),
        y=y[0] if len(y) == 1 else torch.cat(y),
        train=tuple(parts["train"]),
        val=tuple(parts["val"]),
        test=tuple(parts["test"]),
        names=(),
        unseen=(),
    )
