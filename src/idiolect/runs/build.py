"""From a resolved config to a simulation ready to run."""

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idiolect.runs.export import check_complete, load_init

if TYPE_CHECKING:
    from idiolect.data import Federation
    from idiolect.simulation.simulation import Simulation


def build(config: dict[str, Any]) -> "Simulation":
    """Build every room's part; each raises a UserError for settings it does not know."""
    from idiolect import methods, models
    from idiolect.simulation.schedule import Clock, Participation, Stragglers, load_schedule
    from idiolect.simulation.simulation import Simulation

    method = methods.build(config["method"])
    federation = load_federation(config)
    section = dict(config["model"])
    section.setdefault("name", models.default_model(federation.shape))
    model = models.build(section, federation.shape, federation.classes, config["seed"])
    init, clients_init = None, None
    if config["init"] is not None:
        init, clients_init = load_init(Path(config["init"]))
        # Beside the clients' whole models a server's file may hold only what clients share.
        for given in clients_init.values() or (init,):
            check_complete(given, model.state_dict(), config["init"])
    clock, schedule = config["clock"], config["schedule"]
    stragglers = {**config["stragglers"]}
    if "periods" in stragglers:
        stragglers["periods"] = tuple(stragglers["periods"])
    return Simulation(
        method,
        federation,
        model,
        rounds=config["rounds"],
        seed=config["seed"],
        participation=Participation(**config["participation"]),
        stragglers=Stragglers(**stragglers),
        clock=None if clock is None else Clock(**clock),
        schedule=None if schedule is None else load_schedule(Path(schedule)),
        engine=config["engine"],
        device=config["device"],
        dtype=config["dtype"],
        init=init,
        clients_init=clients_init or None,
        eval_every=config["eval_every"],
        keep=config.get("keep", "auto"),
    )


def load_federation(config: dict[str, Any]) -> "Federation":
    """The federation of a config; the last one is kept, as methods share their clients."""
    return _federation(json.dumps([config["data"], config["split"], config["seed"]]))


@lru_cache(maxsize=1)
def _federation(key: str) -> "Federation":
    from idiolect import data as federation

    data, split, seed = json.loads(key)
    return federation.build(data, split, seed)
