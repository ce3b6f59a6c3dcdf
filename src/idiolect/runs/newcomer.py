"""A client that never took part gets its model, as unseen clients of a simulation do.

It is sent what the server would send it now, and works once on its own data: nothing goes back.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from idiolect.core import tree
from idiolect.core.method import Method
from idiolect.core.tree import Tree
from idiolect.data.given_samples import with_newcomer
from idiolect.runs import predictions
from idiolect.runs.trained_run import PersonalModel, TrainedRun
from idiolect.simulation import server_state
from idiolect.simulation.requests import Fit
from idiolect.simulation.simulation import Simulation


@dataclass(frozen=True)
class Newcomer:
    """The model of a client that never took part, and how far it is from those that did. Accuracy
    is the metric of the task, whatever that is."""

    client: int
    name: str
    model: PersonalModel  # `delivered` where the method adapts what it delivers, else `trained`
    gives: str  # which of both
    delivered: float  # test accuracy with what the server sends, as the client would use it
    trained: float  # test accuracy after one round's local work on top
    others: float | None  # mean over the clients that took part, in the run's last round

    @property
    def accuracy(self) -> float:
        return self.delivered if self.gives == "delivered" else self.trained

    def as_dict(self) -> dict[str, Any]:
        others = self.others
        return {
            "client": self.name,
            "gives": self.gives,
            "delivered": self.delivered,
            "trained": self.trained,
            "accuracy": self.accuracy,
            "participants": others,
            "gap": None if others is None else self.accuracy - others,
        }


def adapt(run: TrainedRun, file: Path, name: str) -> tuple[TrainedRun, Newcomer]:
    """The run with one client more, and what that client gets. The model is chosen by the method,
    never by the test samples."""
    joined = run.with_federation(with_newcomer(run.federation, file, name))
    at, client = joined.restore(), joined.federation.n_clients - 1
    delivered, trained = personal_models(joined.sim, client)
    test = joined.federation.test[client]
    found = [joined.model(w, at, f"checkpoint of round {at}") for w in (delivered, trained)]
    before, after = (
        predictions.score(joined.module(one), joined.federation, test) for one in found
    )
    own = type(run.sim.method).adapt is not Method.adapt
    gives, model = ("delivered", found[0]) if own else ("trained", found[1])
    return joined, Newcomer(client, name, model, gives, before, after, _participants(run, at))


def personal_models(sim: Simulation, client: int) -> tuple[Tree, Tree]:
    """What an unseen client predicts with as delivered, and after one round's local work."""
    delivered = sim.personal_model(client)
    down = sim.engine.to_device(sim.method.download(sim.server, [client]).stacked(1))
    fitted = Fit([client], sim.round, (down, sim.mine[[client]])).do(sim.method, sim.engine)
    trained = tree.client(fitted.trained, 0)
    return delivered, server_state.exported(sim.engine.net, trained, delivered)


def _participants(run: TrainedRun, round: int) -> float | None:
    rows = run.table().get(round)
    if rows is None:
        return None
    values = rows[f"{run.federation.task.metric.name}_before"][~rows["unseen"]]
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None
