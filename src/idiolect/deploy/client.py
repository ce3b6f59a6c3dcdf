"""A client: its data, its state on disk, and how it answers the server. Knows no network.

    hello     who it is and how much data it has
    fit       the local work of a round; the result is on disk before the answer leaves
    rejoin    its work is late: it sees the present before the work is used
    recall    the answer it gave for a round, if it still has it (after a server crash)
    evaluate  test the model it would predict with now

An answer holds what the method sends up, sample counts, losses and accuracies; `mine` stays.
"""

import hashlib
import json
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect import __version__, methods, models
from idiolect.core import augmentation, own_code, tree
from idiolect.core.method import Down
from idiolect.core.task import ACCURACY, Metric
from idiolect.core.tree import Tree
from idiolect.data import Federation
from idiolect.data.federation import PARTS
from idiolect.deploy.client_state import ClientState, CommittedWork, StateStore
from idiolect.deploy.local_experiment import LocalExperiment
from idiolect.deploy.messages import Payload, printable
from idiolect.deploy.personal_file import write_personal
from idiolect.deploy.sample_kind import SampleKind
from idiolect.deploy.validate import MAX_LOGGED_NUMBERS
from idiolect.engine.samples import Part
from idiolect.errors import UserError
from idiolect.simulation import server_state
from idiolect.simulation.requests import Adapt, Fit, Rejoin

log = logging.getLogger("idiolect.client")

ONLY_CLIENT = 0  # position of the client in its data, whatever its id in the federation
MAX_CACHED_EXPERIMENTS = 4  # their models and data stay in memory
Metrics = dict[str, dict[str, Any]]  # by part: correct predictions or the value, summed loss


class Refused(UserError):
    """The request is not done; the reason goes back to the server."""


class Client:
    """One client of a federation."""

    def __init__(
        self,
        client_id: int,
        data: Federation,
        state: Path,
        *,
        name: str = "",
        labels: str = "",
        codes: Sequence[int] = (),
        model: str | None = None,
        method: str | None = None,
        loss: str | None = None,
        augment: str | None = None,
        device: str = "cpu",
    ):
        """`loss` and `augment` are this site's own, written as for a simulation; naming code here
        allows it to run."""
        if data.n_clients != 1:
            raise UserError(f"a site holds the data of one client, not of {data.n_clients}")
        self.id, self.data, self.name = client_id, data, name or str(client_id)
        self.kind = SampleKind.of(data, labels, codes)
        augmentation.check_fits(augment, data.shape, data.plain_quantities)
        self.sizes = {part: len(getattr(data, part)[ONLY_CLIENT]) for part in PARTS}
        self.store = StateStore(state)
        self.model, self.method, self.device = model, method, device
        self._learn = (loss, augment)
        self._code = [name for name in (model, method) if name is not None]  # allowed to run here
        self._experiments: dict[str, LocalExperiment] = {}
        self._handlers: dict[str, Callable[[Payload, LocalExperiment], Payload]] = {
            "fit": self._fit,
            "rejoin": self._rejoin,
            "recall": self._recall,
            "evaluate": self._evaluate,
        }

    def answer(self, request: Payload) -> Payload:
        """Answer a request. A failure is an answer too: the server must not wait for a timeout."""
        echo = {k: request.meta.get(k) for k in ("kind", "experiment", "version")}
        echo["client"] = self.id
        if isinstance(notice := request.meta.get("notice"), str):
            log.warning("the server says: %s", printable(notice[:300]))
        try:
            done = self._handle(request)
        except UserError as reason:
            log.warning("refused %s: %s", request.kind, reason)
            return Payload(echo | {"refused": str(reason)})
        except OSError as error:
            log.error("%s failed: %s", request.kind, error)
            return Payload(echo | {"refused": f"disk: {error.strerror or type(error).__name__}"})
        except Exception as error:
            # The text of an exception may quote data, so only its type leaves the site.
            log.exception("%s failed", request.kind)
            return Payload(echo | {"refused": f"{type(error).__name__} at the site, see its log"})
        return Payload(echo | done.meta, done.record)

    def _handle(self, request: Payload) -> Payload:
        if request.kind == "hello":
            return self._hello(request)
        if request.kind not in self._handlers:
            raise Refused(f"unknown request '{request.kind[:40]}'")
        experiment = self._experiment_of(request.meta.get("config"))
        asked = request.meta.get("revision")  # older servers do not say
        if asked is not None and asked != experiment.revision:
            raise Refused(
                f"the method has revision {experiment.revision} here and {asked} at the server: it "
                f"computes something else; here is idiolect {__version__}, install the server's"
            )
        record = tree.ordered(request.record, experiment.engine.net.names)
        record = experiment.engine.to_device(record)
        return self._handlers[request.kind](Payload(request.meta, record), experiment)

    def _experiment_of(self, config: Any) -> LocalExperiment:
        key = json.dumps(config, sort_keys=True)
        if key not in self._experiments:
            if not isinstance(config, dict):
                raise Refused("the request carries no settings")
            for what, ours in (("model", self.model), ("method", self.method)):
                config = {**config, what: _accepted(what, config[what], ours)}
            if len(self._experiments) >= MAX_CACHED_EXPERIMENTS:
                self._experiments.pop(next(iter(self._experiments)))
            self._experiments[key] = LocalExperiment(
                config, self.data, self.kind.form, self.id, self.device, self._learn, self._code
            )
        return self._experiments[key]

    # --- requests ---

    def _hello(self, request: Payload) -> Payload:
        about = {
            "name": self.name,
            "sizes": self.sizes,
            **self.kind.told(),
            "fresh": self.store.load(_experiment_id(request)) is None,
        }
        if section := (request.meta.get("config") or {}).get("method"):
            method = methods.build(_accepted("method", section, self.method), self._code)
            about["revision"] = method.revision
        return Payload(about)

    def _fit(self, request: Payload, experiment: LocalExperiment) -> Payload:
        version = _round_number(request.meta, "version")
        state = self._state(request, experiment)
        if state.fitted.version == version:
            log.info("round %d: answered again from disk", version + 1)
            return Payload(state.fitted.answer, {"up": state.fitted.up})
        if state.fitted.version > version:
            raise Refused(f"version {version} is older than {state.fitted.version}, done before")
        method, engine = experiment.method, experiment.engine
        own = map(engine.to_device, (state.mine, state.fitted.kept))
        done = Fit([ONLY_CLIENT], version, (_down(request).stacked(1), *own)).do(method, engine)
        answer: dict[str, Any] = {
            "samples": int(done.samples.sum()),
            "train_loss": _finite_or_none(done.train_loss.mean()),
            "logs": {n: v.tolist() for n, v in done.logs.items() if _can_be_logged(v)},
        }
        if request.meta.get("test"):
            answer["after"] = self._test(experiment, done.trained)
        fitted = CommittedWork(version, done.mine, done.up, answer, done.kept)
        done_so_far = ClientState(self.id, fitted, settings=state.settings)
        self.store.commit(_experiment_id(request), done_so_far)
        log.info("round %d: trained on %d samples", version + 1, answer["samples"])
        return Payload(answer, {"up": done.up})

    def _rejoin(self, request: Payload, experiment: LocalExperiment) -> Payload:
        version, since = (_round_number(request.meta, key) for key in ("version", "since"))
        state = self._state(request, experiment)
        if state.fitted.version != since:
            raise Refused(f"my last work is of version {state.fitted.version}, not {since}")
        if state.rejoined is not None and state.rejoined.version == version:
            return Payload(state.rejoined.answer, {"up": state.rejoined.up})
        # Always from the state right after training: a repeated request gives the same answer.
        method, engine = experiment.method, experiment.engine
        own = map(engine.to_device, (state.fitted.mine, state.fitted.up))
        done = Rejoin([ONLY_CLIENT], version, (_down(request).stacked(1), *own)).do(method, engine)
        tested = bool(request.meta.get("test"))
        answer = {"after": self._test(experiment, done.trained)} if tested else {}
        state.rejoined = CommittedWork(version, done.mine, done.up, answer)
        self.store.commit(_experiment_id(request), state)
        return Payload(answer, {"up": done.up})

    def _recall(self, request: Payload, experiment: LocalExperiment) -> Payload:
        state = self._stored(request, experiment)
        if state is None or state.fitted.version != _whole_number(request.meta, "version"):
            return Payload({"have": False})
        return Payload(state.fitted.answer | {"have": True}, {"up": state.fitted.up})

    def _evaluate(self, request: Payload, experiment: LocalExperiment) -> Payload:
        state = self._state(request, experiment)
        method, engine, down = experiment.method, experiment.engine, _down(request)
        params = method.personal(down.stacked(1), engine.to_device(state.mine))
        adapt = Adapt([ONLY_CLIENT], _whole_number(request.meta, "version"), (params,))
        model = adapt.do(method, engine)
        answer: dict[str, Any] = {"before": self._test(experiment, model)}
        if request.meta.get("keep"):
            self._keep(request, experiment, tree.client(model, 0), answer["before"])
            answer["kept"] = True
        part = request.meta.get("global")
        shared: Tree | None = request.record.get("global") or down.shared.get(part or "")
        if shared is not None:
            answer["global"] = self._test(experiment, tree.expand(shared, 1))
        return Payload(answer)

    def _keep(
        self, request: Payload, experiment: LocalExperiment, model: Tree, tested: Metrics
    ) -> None:
        """Write the model this client predicts with from now on."""
        config, name = request.meta["config"], _experiment_id(request)
        card = {
            "client": self.id,
            "method": config["method"],
            "model": models.plain(config["model"]),
            "rounds": _whole_number(request.meta, "version"),
            **self.kind.told(),
            "tested": tested,
            "samples": self.sizes,
        }
        whole = server_state.exported(experiment.engine.net, model, experiment.module_state)
        path = write_personal(self.store.folder, name, models.merged(whole), card)
        log.info("personal model: %s", path)

    # --- shared by the requests ---

    def _stored(self, request: Payload, experiment: LocalExperiment) -> ClientState | None:
        """The state on disk, if it is of this client and these settings."""
        state = self.store.load(_experiment_id(request))
        if state is None:
            return None
        if state.client != self.id:
            raise Refused(f"the state on disk belongs to client {state.client}")
        if state.settings not in ("", _digest(request.meta["config"])):
            raise Refused("the settings of this experiment are not those it began with")
        for work in filter(None, (state.fitted, state.rejoined)):
            work.mine = tree.ordered(work.mine, experiment.engine.net.names)
            work.up = tree.ordered(work.up, experiment.engine.net.names)
        return state

    def _state(self, request: Payload, experiment: LocalExperiment) -> ClientState:
        """The state on disk, or at the first contact one made from the starting point."""
        if (state := self._stored(request, experiment)) is not None:
            return state
        if "start" not in request.record:
            raise Refused("no state of this experiment here: the starting point is needed")
        begin = tree.expand(request.record["start"], 1)
        mine = experiment.method.client_init(begin, experiment.engine.local([ONLY_CLIENT], 0))
        settings = _digest(request.meta["config"])
        state = ClientState(self.id, CommittedWork(-1, mine), settings=settings)
        self.store.commit(_experiment_id(request), state)
        return state

    def _test(self, experiment: LocalExperiment, params: Tree) -> Metrics:
        found: Metrics = {}
        parts: tuple[Part, ...] = ("test", "val")
        for part in parts:
            rows = experiment.engine.samples.parts[part][ONLY_CLIENT]
            if len(rows):
                correct, loss = experiment.engine.evaluate(params, [ONLY_CLIENT], part)
                score = _score(experiment.engine.task.metric, correct, len(rows))
                found[part] = {**score, "loss": _finite_or_none(loss[0])}
        return found


def _accepted(what: str, section: dict[str, Any], ours: str | None) -> dict[str, Any]:
    """The model or method to build. Own code is loaded only as the site named it: `net.py:Net` is
    the site's file of that name, wherever the server keeps its own."""
    name = str(section["name"])
    wanted = own_code.short(name)
    if ours is not None and wanted != own_code.short(ours):
        raise Refused(f"the server wants {what} {wanted}, this site runs {ours}")
    if own_code.is_own(name) and ours is None:
        raise Refused(
            f"{what} {wanted} is code; start the client with --{what} {wanted} to allow it"
        )
    return {**section, "name": ours or name}


def _down(request: Payload) -> Down:
    return Down(request.record.get("shared", {}), request.record.get("each", {}))


def _can_be_logged(value: Tensor) -> bool:
    return value.numel() <= MAX_LOGGED_NUMBERS and bool(torch.isfinite(value.double()).all())


def _score(metric: Metric, sums: Tensor, size: int) -> dict[str, float | None]:
    """What leaves the site of a test. Of another metric than accuracy that is its value: what it is
    made of may say how many samples of each class there are."""
    if metric is ACCURACY:
        return {"correct": float(sums[0])}
    value = metric.value(sums.double().cpu().reshape(1, -1).numpy(), np.array([float(size)]))
    return {"value": _finite_or_none(value[0])}


def _finite_or_none(value: Tensor | float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _experiment_id(request: Payload) -> str:
    try:
        return StateStore.checked(str(request.meta.get("experiment")))
    except ValueError as error:
        raise Refused(str(error)) from None


def _digest(config: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def _round_number(meta: dict[str, Any], key: str) -> int:
    """A round of the experiment, from 0: a client that did one beyond them would refuse all true
    ones, because they are older."""
    value, rounds = _whole_number(meta, key), meta["config"].get("rounds")
    if type(rounds) is int and value >= rounds:
        raise Refused(f"round {value + 1} is not one of the experiment's {rounds}")
    return value


def _whole_number(meta: dict[str, Any], key: str) -> int:
    value = meta.get(key)
    if type(value) is not int or value < 0:
        raise Refused(f"{key} must be a whole number, got {value!r}")
    return value
