"""A simulation from Python: your data, your module, everything it produced in one object."""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from idiolect import methods
from idiolect.core import augmentation, own_code, shown
from idiolect.core.method import Method
from idiolect.core.task import LearningTask
from idiolect.core.text import shortened
from idiolect.data import Federation
from idiolect.errors import UserError, did_you_mean
from idiolect.simulation import early_stop, metrics
from idiolect.simulation.measures import Measures
from idiolect.simulation.outcome import Round
from idiolect.simulation.protocols import ProtocolName
from idiolect.simulation.protocols import protocol as protocol_named
from idiolect.simulation.schedule import Clock, Participation, Stragglers, load_schedule
from idiolect.simulation.settings import SimulationOptions
from idiolect.simulation.simulation import Simulation
from idiolect.simulation.starting_weights import check_clients, check_complete, load_init
from idiolect.simulation.summary import as_event, summarise

OnRound = Callable[[Round], object]  # False ends the run
OPTIONS = tuple(known.name for known in fields(SimulationOptions))


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

    def __repr__(self) -> str:
        """One line; tables and models are many."""
        metric = metrics.metric_of(self.rounds[0].clients)
        told = f"{metric.name} {shown.score(self.summary, metric.share)}"
        return f"Result({self.summary['method']}, {len(self.rounds) - 1} rounds, {told})"

    def _repr_html_(self) -> str:
        share = metrics.metric_of(self.rounds[0].clients).share
        return shown.result_table(self.summary, share, len(self.rounds) - 1)

    def frame(self) -> Any:
        """A pandas DataFrame with a row per client and round, the columns of clients.parquet."""
        return shown.frame(_table(self.rounds))

    def accuracy(self, series: Literal["before", "after", "global"] = "before") -> np.ndarray:
        """`[round, client]` test accuracies, or what else the task's metric is."""
        name = metrics.metric_of(self.rounds[0].clients).name
        return np.stack([r.clients[f"{name}_{series}"] for r in self.rounds])


def simulate(
    method: Method | str | Mapping[str, Any],
    federation: Federation,
    model: nn.Module,
    *,
    rounds: int | None = None,
    seed: int = 0,
    participation: Participation | float | str | Mapping[str, Any] = 1.0,
    stragglers: Stragglers | int | Mapping[str, Any] = 0,
    clock: Clock | bool | Mapping[str, Any] | None = None,
    schedule: str | Path | Sequence[Any] | None = None,
    engine: Literal["stacked", "loop"] = "stacked",
    device: str = "auto",
    dtype: Literal["float32", "float64", "tf32", "bf16"] = "float32",
    keep: Literal["auto", "device", "host", "disk"] = "auto",
    eval_every: int = 1,
    stop_after: int = 0,
    measure: Measures | str | Sequence[str] = (),
    protocol: ProtocolName = "default",
    loss: Callable[..., Tensor] | None = None,
    augment: Callable[..., Tensor] | str | None = None,
    init: str | Path | nn.Module | Mapping[str, Tensor] | None = None,
    save_models: Literal["every", "last", "best"] | None = "last",
    clients_init: Mapping[int, Mapping[str, Tensor]] | None = None,
    on_round: OnRound | None = None,
    **unknown: Any,
) -> Result:
    """Run a method on a federation. The options take what the command line and YAML files take
    (`SimulationOptions` says what they mean), and objects: a schedule may also be a list of rounds,
    `init` a module or a dict of tensors, `clients_init` such dicts by client. `on_round` is called
    with every `Round`, from the starting point on; the run ends when it returns False.

    >>> federation = Federation.from_arrays(clients)  # x_train, y_train, x_test, y_test each
    >>> result = simulate("fedas", federation, MyModule(), rounds=40, participation="binomial:0.5")
    >>> my_module.load_state_dict(result.last.clients[3])  # client 3's own model
    """
    given = {name: value for name, value in locals().items() if name in OPTIONS}
    options = given_options({**given, **unknown})
    method = method if isinstance(method, Method) else methods.build(method)
    simulation = prepare(method, federation, model, options, clients_init)
    done, models = _run(simulation, options, on_round)
    summary = _summary(method, options, done)
    if simulation.round < simulation.rounds:
        scores = early_stop.scores_of({r.round: r.clients for r in done}, options.protocol)
        summary["stopped_early"] = early_stop.told(scores, options.stop_after)
    return Result(summary, done, models)


def given_options(given: Mapping[str, Any]) -> SimulationOptions:
    """Keywords of `simulate()` as checked options."""
    for name in given:
        if name not in (*OPTIONS, "clients_init"):
            raise did_you_mean(name, (*OPTIONS, "clients_init"), "option of simulate")
    plain = {"save_models": "last"} | {k: v for k, v in given.items() if k in OPTIONS}
    if isinstance(plain.get("init"), nn.Module):
        plain["init"] = plain["init"].state_dict()
    return SimulationOptions(**plain)


def prepare(
    method: Method,
    federation: Federation,
    model: nn.Module,
    options: SimulationOptions,
    clients_init: Mapping[int, Mapping[str, Tensor]] | None = None,
    allow_code: Collection[str] = (),
) -> Simulation:
    """The simulation that these options describe: files are read, own code that `allow_code` names
    is loaded, settings that change nothing are warned of. `simulate()` and the command line both
    come here."""
    _check_types(federation, model)
    for line in method.without_effect() + options.without_effect():
        warnings.warn(line, stacklevel=3)
    check_method(method, federation.task, options.loss)
    early_stop.check_validation(federation, options.stop_after)
    init, schedule, source = options.init, options.schedule, "clients_init"
    if isinstance(init, Path):
        source = str(init)
        init, clients_init = load_init(init)
        # Beside the clients' whole models a server's file may hold only what clients share.
        for weights in clients_init.values() or (init,):
            check_complete(weights, model.state_dict(), source)
    check_clients(clients_init or (), federation.n_clients, source)
    augmentation.check_fits(options.augment, federation.shape, federation.plain_quantities)
    loss, augment = options.loss, options.augment
    if isinstance(loss, str):
        loss = own_code.load_function(loss, "loss", allow_code)
    if isinstance(augment, str):
        augment = augmentation.loaded(augment, allow_code)
    return Simulation(
        method,
        federation,
        model,
        rounds=method.rounds_default if options.rounds is None else options.rounds,
        seed=options.seed,
        participation=options.participation,
        stragglers=options.stragglers,
        clock=options.clock,
        schedule=load_schedule(schedule) if isinstance(schedule, Path) else schedule,
        engine=options.engine,
        device=options.device,
        dtype=options.dtype,
        init=init,
        clients_init=clients_init or None,
        eval_every=options.eval_every,
        tested_at_end=protocol_named(options.protocol).rounds_at_end,
        measure=options.measure,
        keep=options.keep,
        learn=(loss, augment),
    )


def _check_types(federation: object, model: object) -> None:
    """Names are for the command line: from Python the data and the network are objects."""
    if not isinstance(federation, Federation):
        raise UserError(
            "federation must be a Federation, as Federation.from_arrays makes one, got "
            f"{shortened(repr(federation), 40)}"
        )
    if not isinstance(model, nn.Module):
        raise UserError(
            f"model must be a torch.nn.Module, an object, got {shortened(repr(model), 40)}"
        )


def check_method(method: Method, task: LearningTask, loss: object) -> None:
    """Refuse a method that cannot do the task, or that an own `loss` does not reach."""
    if method.uses_classes and not task.has_classes:
        raise UserError(
            f"{method.name} needs samples with one class each; for {task.name} choose"
            " another method, such as fedavg, fedper or ditto"
        )
    if loss is not None and method.has_fixed_loss:
        raise UserError(
            f"{method.name} trains by the loss of its paper, which loss does not replace; leave it"
            " out, or choose another method, such as fedavg, fedper or ditto"
        )


def _run(
    simulation: Simulation, options: SimulationOptions, on_round: OnRound | None = None
) -> tuple[list[Round], dict[int, Models]]:
    """All rounds, and the models of those that were asked for."""
    done = [simulation.start()]
    scores: dict[int, float | None] = {}
    models: dict[int, Models] = {}
    best = -np.inf
    if options.save_models == "every":
        models[0] = _models(simulation)
    going = on_round is None or on_round(done[0].settle()) is not False
    while going and simulation.round < simulation.rounds:
        done.append(simulation.step(wait=False))
        if options.save_models == "every":
            models[simulation.round] = _models(simulation)
        elif options.save_models == "best":
            score = metrics.selection(done[-1].settle().clients, options.protocol)
            if score is not None and score > best:
                best, models = score, {simulation.round: _models(simulation)}
        if options.stop_after:
            rows = done[-1].settle().clients
            scores[simulation.round] = metrics.selection(rows, options.protocol)
            going = not early_stop.is_over(scores, options.stop_after, options.eval_every)
        if on_round is not None and on_round(done[-1].settle()) is False:
            going = False
    if options.save_models == "last":
        models[simulation.round] = _models(simulation)
    return [one.settle() for one in done], models


def _models(simulation: Simulation) -> Models:
    everyone = range(simulation.federation.n_clients)
    return Models(simulation.server_model(), [simulation.personal_model(i) for i in everyone])


def _table(done: Sequence[Round]) -> dict[str, np.ndarray]:
    """A row per client and round."""
    table = {name: np.concatenate([r.clients[name] for r in done]) for name in done[0].clients}
    number = np.concatenate([np.full(len(r.clients["client"]), r.round) for r in done])
    return {"round": number, **table}


def _summary(method: Method, options: SimulationOptions, done: list[Round]) -> dict[str, Any]:
    table = _table(done)
    personal = method.personal_part != "nothing"
    events = [as_event(one) for one in done]
    return summarise(method.name, options.seed, options.protocol, personal, table, events)
