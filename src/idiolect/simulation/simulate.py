"""A simulation from Python: your data, your module, everything it produced in one object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from idiolect import methods
from idiolect.core.method import Method
from idiolect.data import Federation
from idiolect.errors import UserError
from idiolect.simulation import metrics
from idiolect.simulation.outcome import Round
from idiolect.simulation.simulation import Simulation


@dataclass
class Models:
    """Weights under the plain module's names, ready for `load_state_dict`."""

    server: dict[str, Tensor] | None  # what all clients share, if anything
    clients: list[dict[str, Tensor]]  # what each client predicts with


@dataclass
class Result:
    """Accuracies, traffic and models of a simulation."""

    summary: dict[str, Any]  # as summary.json
    rounds: list[Round]  # from 0, the starting point
    models: dict[int, Models] = field(default_factory=dict)  # by round, as asked for

    @property
    def last(self) -> Models:
        return self.models[max(self.models)]

    def accuracy(self, series: Literal["before", "after", "global"] = "before") -> np.ndarray:
        """`[round, client]` test accuracies."""
        return np.stack([r.clients[f"accuracy_{series}"] for r in self.rounds])


def simulate(
    method: Method | str | Mapping[str, Any],
    federation: Federation,
    model: nn.Module,
    *,
    rounds: int,
    save_models: Literal["every", "last", "best"] = "last",
    protocol: str = "default",
    **options: Any,
) -> Result:
    """Run a method on a federation; `options` are those of `Simulation` (seed, participation,
    stragglers, clock, schedule, engine, device, dtype, init, clients_init, eval_every, keep).

    >>> federation = Federation.from_arrays(clients)  # x_train, y_train, x_test, y_test each
    >>> result = simulate("fedas", federation, MyModule(), rounds=40)
    >>> my_module.load_state_dict(result.last.clients[3])  # client 3's own model
    """
    if save_models not in ("every", "last", "best"):
        raise UserError(f"save_models must be every, last or best, not {save_models!r}")
    metrics.protocol(protocol)
    method = method if isinstance(method, Method) else methods.build(method)
    simulation = Simulation(method, federation, model, rounds=rounds, **options)
    done = [simulation.start()]
    models: dict[int, Models] = {}
    best = -np.inf
    if save_models == "every":
        models[0] = _models(simulation)
    while simulation.round < rounds:
        done.append(simulation.step(wait=False))
        if save_models == "every":
            models[simulation.round] = _models(simulation)
        elif save_models == "best":
            score = metrics.selection(done[-1].settle().clients, protocol)
            if score is not None and score > best:
                best, models = score, {simulation.round: _models(simulation)}
    if save_models == "last":
        models[rounds] = _models(simulation)
    done = [one.settle() for one in done]
    return Result(_summary(method, simulation, done, protocol), done, models)


def _models(simulation: Simulation) -> Models:
    everyone = range(simulation.federation.n_clients)
    return Models(simulation.server_model(), [simulation.personal_model(i) for i in everyone])


def _summary(
    method: Method, simulation: Simulation, done: list[Round], protocol: str
) -> dict[str, Any]:
    table = {name: np.concatenate([r.clients[name] for r in done]) for name in done[0].clients} | {
        "round": np.repeat([r.round for r in done], simulation.federation.n_clients)
    }
    seconds = sum(r.seconds for r in done)
    training = seconds - sum(r.seconds_eval for r in done)
    samples = sum(r.samples for r in done)
    return {
        "method": method.name,
        "rounds": simulation.round,
        "seed": simulation.seed,
        **metrics.summarise(table, protocol, method.personal_part != "nothing"),
        "bytes_up": sum(r.bytes_up for r in done),
        "bytes_down": sum(r.bytes_down for r in done),
        "seconds": seconds,
        "samples": samples,
        "samples_per_second": samples / training if training > 0 else None,
    }
