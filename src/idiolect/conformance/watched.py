"""A simulation whose messages are kept, round by round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from idiolect import methods
from idiolect.core import tree
from idiolect.core.method import Method
from idiolect.data import Federation
from idiolect.simulation.outcome import Round
from idiolect.simulation.requests import Fit, Task
from idiolect.simulation.simulation import Simulation


def watch_tasks(sim: Simulation, seen: Callable[[Task, Any], None]) -> None:
    """Call `seen(task, result)` for every task of every round."""
    stepping = sim.stepping

    def watched() -> Any:
        asking, result = stepping(), None
        while True:
            try:
                task = asking.send(result)
            except StopIteration as end:
                return end.value
            result = yield task
            seen(task, result)

    sim.stepping = watched  # type: ignore[method-assign]


class Watched:
    """Runs `rounds` rounds and keeps, for each (from 0): the round, `fits`, what rejoined late,
    every client's personal model, the server state and the private states before and after."""

    def __init__(
        self,
        method: Method | Mapping[str, Any],
        federation: Federation,
        model: nn.Module,
        rounds: int,
        **options: Any,
    ) -> None:
        built = method if isinstance(method, Method) else methods.build(method)
        usual = {"device": "cpu", "dtype": "float64", "engine": "stacked"}
        self.sim = Simulation(built, federation, model, rounds=rounds, **(usual | options))
        self.rounds: list[Round] = []
        self.fits: list[Any] = []
        self.downs: list[Any] = []
        self.rejoined: list[dict[int, Any]] = []
        self.personal: list[list[dict[str, Tensor]]] = []
        self.server: list[dict[str, Any]] = []
        self.mine: list[dict[int, Any]] = [self._private()]
        self._keep_messages()
        for _ in range(rounds):
            self.fits.append(None)
            self.downs.append(None)
            self.rejoined.append({})
            self.rounds.append(self.sim.step())
            everyone = list(range(federation.n_clients))
            models = self.sim._personal(everyone)
            self.personal.append([tree.client(models, i) for i in everyone])
            self.server.append(dict(self.sim.server))
            self.mine.append(self._private())

    def _private(self) -> dict[int, Any]:
        everyone = list(range(self.sim.federation.n_clients))
        state = self.sim.mine[everyone]
        return {i: tree.each(lambda x: x.clone(), tree.row(state, i)) for i in everyone}

    def _keep_messages(self) -> None:
        rejoin = self.sim._rejoin

        def keep_fit(task: Any, fitted: Any) -> None:
            if type(task) is Fit:
                self.downs[-1], self.fits[-1] = task.records[0], fitted

        def keep_rejoin(*args: Any) -> Any:
            self.rejoined[-1] = yield from rejoin(*args)
            return self.rejoined[-1]

        watch_tasks(self.sim, keep_fit)
        self.sim._rejoin = keep_rejoin  # type: ignore[method-assign, assignment]

    def up(self, t: int, name: str, position: int) -> Any:
        """Part `name` of what the client at `position` among those who started sent."""
        part = self.fits[t].up[name]
        return part[position] if isinstance(part, Tensor) else tree.client(part, position)

    def logs(self, t: int) -> dict[str, Tensor]:
        return self.rounds[t].logs

    def shown(self, t: int, name: str) -> Tensor:
        """What was logged of those whose work arrived; of the others there is nothing."""
        value, there = self.rounds[t].logs[name], self.rounds[t].arrived
        absent = [i for i in range(len(value)) if i not in there]
        assert value[absent].isnan().all()
        if value.ndim == 2 and value.shape[1] == len(value):
            assert value[:, absent].isnan().all()
            value = value[:, there]
        return value[there]
