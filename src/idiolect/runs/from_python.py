"""`simulate()` that writes a run directory: the same files as the command line, from objects."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import nn

from idiolect import methods
from idiolect.core.method import Method
from idiolect.data import Federation
from idiolect.errors import UserError
from idiolect.runs import directory
from idiolect.runs.config import Config, RunConfig
from idiolect.runs.environment import fingerprints
from idiolect.runs.execute import execute
from idiolect.runs.live_line import LiveLine
from idiolect.runs.loggers import Loggers
from idiolect.runs.progress import Progress
from idiolect.simulation import simulate as simulation
from idiolect.simulation.outcome import Round
from idiolect.simulation.starting_weights import read_weights

SOURCE = "python"  # the name of data and split that no file holds


def simulate(
    method: Method | str | Mapping[str, Any],
    federation: Federation,
    model: nn.Module,
    *,
    out: str | Path | None = None,
    progress: Progress | None = None,
    on_round: simulation.OnRound | None = None,
    log: str | Sequence[str] = (),
    **options: Any,
) -> simulation.Result:
    """`idiolect.simulation.simulate.simulate`, whose options it takes. With `out` everything is
    written to that directory as by `idiolect run`, so that reports and comparisons read it, and
    rounds are shown as there (`progress=Progress()` of `idiolect.runs.progress` shows none); `log`
    shows them besides: "csv,tensorboard"."""
    if out is None:
        if log:
            raise UserError("log: rounds are logged into a run's directory; give out=… too")
        return simulation.simulate(method, federation, model, on_round=on_round, **options)
    chosen = simulation.given_options(options)
    method = method if isinstance(method, Method) else methods.build(method)
    _refuse_objects(chosen, options)
    sim = _Kept(simulation.prepare(method, federation, model, chosen), on_round)
    config = _config(method, federation, model, chosen) | {"log": Loggers.of(log).as_dict()}
    folder = Path(out)
    if directory.state(folder, config) != "new":
        raise UserError(f"{folder} already holds this run; choose another out")
    summary = execute(config, folder, progress=progress or LiveLine(), build=lambda _: sim)
    return simulation.Result(summary, sim.rounds_done, _models(folder / "models"))


class _Kept:
    """A simulation that keeps the rounds it gives, and shows them to `on_round`."""

    def __init__(self, sim: Any, on_round: simulation.OnRound | None) -> None:
        self._sim, self._on_round = sim, on_round
        self.ended = False  # by `on_round`
        self.rounds_done: list[Round] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sim, name)

    def start(self) -> Round:
        return self._keep(self._sim.start())

    def step(self) -> Round:
        return self._keep(self._sim.step())

    def _keep(self, done: Round) -> Round:
        self.rounds_done.append(done)
        if self._on_round is not None and self._on_round(done) is False:
            self.ended = True
        return done


def _refuse_objects(chosen: Any, options: Mapping[str, Any]) -> None:
    """A run's settings are text: what it starts from must be a file."""
    for name in ("init", "schedule", "loss", "augment"):
        if getattr(chosen, name) is not None and not isinstance(getattr(chosen, name), Path | str):
            raise UserError(f"{name}: give a file where a run is written (out=…), not an object")
    if options.get("clients_init"):
        raise UserError("clients_init: give init=FOLDER where a run is written (out=…)")


def _config(method: Method, federation: Federation, model: nn.Module, chosen: Any) -> Config:
    nothing = {"init": None, "schedule": None}
    data = fingerprints(nothing, SimpleNamespace(federation=federation))["data"][:16]
    given = {name: getattr(chosen, name) for name in simulation.OPTIONS}
    made = RunConfig(
        **given,
        method={"name": method.name, **method.as_dict()},
        data={"name": SOURCE, "sha256": data},
        split={"name": SOURCE, "clients": federation.n_clients},
        model={"name": type(model).__name__},
    ).as_dict()
    if made["rounds"] is None:
        made["rounds"] = method.rounds_default
    plain: Config = json.loads(json.dumps(made, default=str))
    return plain


def _models(folder: Path) -> dict[int, simulation.Models]:
    """What the run saved, by round."""
    found = {}
    for export in sorted(folder.iterdir()) if folder.is_dir() else ():
        server = export / "server.safetensors"
        clients = sorted(export.glob("client_*.safetensors"), key=lambda p: (len(p.name), p.name))
        at = int(json.loads((export / "round.json").read_text(encoding="utf-8"))["round"])
        shared = read_weights(server) if server.exists() else None
        found[at] = simulation.Models(shared, [read_weights(one) for one in clients])
    return found
