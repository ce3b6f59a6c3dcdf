"""The server's rounds: a `Simulation` whose clients are elsewhere.

It has the simulator's interface (`start`, `step`, `state`, `restore`), so `runs.execute` writes the
same run directory. Given who started and who arrived, it gives the simulator's numbers.
"""

import logging
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from idiolect import methods, models
from idiolect.core import tree
from idiolect.core.method import Method
from idiolect.core.net import initial_tree
from idiolect.core.task import LearningTask
from idiolect.core.tree import Tree
from idiolect.deploy.arrivals import Arrivals
from idiolect.deploy.client_registry import PendingRequest
from idiolect.deploy.client_requests import ClientRequests, ExpectedReply
from idiolect.deploy.enrolment import Enrolment
from idiolect.deploy.messages import Payload
from idiolect.engine import select
from idiolect.errors import UserError
from idiolect.simulation import server_state
from idiolect.simulation.evaluation import RoundsTested
from idiolect.simulation.outcome import Round
from idiolect.simulation.protocols import protocol as protocol_named
from idiolect.simulation.schedule import Participation
from idiolect.simulation.scores import PARTS, Columns, Scores, client_columns
from idiolect.simulation.simulate import check_method
from idiolect.simulation.starting_weights import check_complete, load_init

log = logging.getLogger("idiolect.server")

ASYNCHRONOUS_WINDOW = 60.0  # seconds a round of an asynchronous method waits unless told otherwise


class FederationServer:
    """One method on a federation of real sites, round by round.

    It is built once enough clients have said hello: their samples decide the model's shape.
    """

    def __init__(
        self, config: dict[str, Any], enrolment: Enrolment, allow_code: Collection[str] = ()
    ):
        assert enrolment.kind is not None
        self.config, self.rounds, self.seed = config, config["rounds"], config["seed"]
        self.enrolment, self.terms = enrolment, enrolment.terms
        self.registry, dispatcher = enrolment.registry, enrolment.dispatcher
        method = methods.build(config["method"], allow_code)
        kind = enrolment.kind
        check_method(method, LearningTask(kind.task), None)
        self.method: Method = method.over(self.rounds)
        self.participation = Participation(**config["participation"])
        self.device, self.dtype = torch.device("cpu"), select.compute_dtype(config["dtype"])
        model = models.build(
            config["model"], kind.shape, kind.classes, self.seed, allow_code, kind.form
        )
        self._module_state = server_state.module_values(model)
        how = {"seed": self.seed, "device": self.device, "dtype": self.dtype}
        expected = ExpectedReply(self.method, model, kind, **how)
        self.net = expected.net
        start_tree = self._start_tree(model)
        everyone = list(range(self.terms.clients))
        self.server = server_state.new_server(self.method, self.net, start_tree, everyone, {})
        sizes = {part: np.zeros(len(everyone), dtype=np.int32) for part in PARTS}
        self.scores = Scores(sizes, metric=kind.judged_by)
        told = ("method", "model", "seed", "dtype", "rounds")
        dispatcher.settings = {k: config[k] for k in told}
        dispatcher.revision = method.revision
        dispatcher.handlers["hello"] = self._admit
        self.requests = ClientRequests(self.method, self.server, start_tree, expected, dispatcher)
        self.arrivals = Arrivals(dispatcher, self.scores, self.method.asynchronous)
        self.round = 0

    def _start_tree(self, model: nn.Module) -> Tree:
        """The parameters everybody begins with."""
        made = initial_tree(model, self.net, self.dtype)
        if self.config["init"] is None:
            return made
        given, _ = load_init(Path(self.config["init"]))
        if given is None:
            raise UserError(f"init: {self.config['init']} holds no server.safetensors")
        check_complete(given, model.state_dict(), self.config["init"])
        self._check_frozen(model, given)
        return select.with_given_weights(self.net, made, given)

    def _check_frozen(self, model: nn.Module, given: Tree) -> None:
        """Frozen layers are never sent: a site makes them itself, so others cannot be had."""
        for name, value in model.named_parameters():
            if value.requires_grad or name not in given:
                continue
            if value.shape != given[name].shape or not torch.equal(given[name].to(value), value):
                raise UserError(
                    f"init: {self.config['init']} gives the frozen layer '{name}' other values "
                    "than the model has, and sites make frozen layers themselves; give the model "
                    "these values in its code (--model at every site), or let the layer train"
                )

    def _admit(self, request: PendingRequest, hello: Payload) -> str | None:
        reason = self.enrolment.admit(request, hello)
        self.requests.recall()
        return reason

    # --- rounds ---

    def start(self) -> Round:
        """Round 0: every client tests the starting point."""
        self._update_sizes()
        seconds = self._evaluate()
        return Round(0, [], [], [], self._columns(), seconds=seconds, seconds_eval=seconds)

    def step(self) -> Round:
        """One round: ask, wait, aggregate, test."""
        began, t = time.perf_counter(), self.round
        self.enrolment.poll()
        self.enrolment.wait_for(self.terms.arrivals)
        self._update_sizes()
        self.arrivals.used = {}
        self.server.round, self.server.logs = t, {}
        chosen, tests = self._choose(t), self._tests(t)
        result = Round(t + 1, chosen, [], [], {})
        if chosen:
            self.method.prepare(self.server, chosen)
            result.bytes_down += self.requests.fit(chosen, t, tests)
        self._wait(t, result)
        ups = self.arrivals.ups(self.server, t, tree.any_leaf(self.requests.start))
        result.bytes_up = tree.nbytes(ups.record)
        if len(ups) >= self.terms.arrivals or self.method.asynchronous:
            self.method.aggregate(self.server, ups)
            result.arrived, result.staleness = ups.ids, [t - s for s in ups.started]
        elif len(ups):
            self.registry.note("too few", round=t + 1, arrived=ups.ids, needed=self.terms.arrivals)
        self.arrivals.describe(result, self.server, self.dtype)
        self.round = self.arrivals.round = t + 1
        if tests:
            result.seconds_eval = self._evaluate()
        else:  # their earlier models are not the ones they have now
            self.scores.forget("after", chosen)
        result.clients = self._columns(result, blank=not tests)
        result.seconds = time.perf_counter() - began
        log.info("round %d: %d started, %d arrived, %.1f s", t + 1, len(chosen),
                 len(result.arrived), result.seconds)  # fmt: skip
        return result

    def _tests(self, t: int) -> bool:
        at_end = protocol_named(self.config["protocol"]).rounds_at_end
        return t + 1 in RoundsTested(self.rounds, self.config["eval_every"], at_end)

    def _update_sizes(self) -> None:
        """Clients may have joined since the last round."""
        self.enrolment.dismiss_absurd()
        self.server.sizes = {i: sizes["train"] for i, sizes in self.registry.sizes().items()}

    def _choose(self, t: int) -> list[int]:
        """Who starts: drawn as the simulator draws, from those who are not busy or gone."""
        drawn = self.participation.draw(sorted(self.registry.clients), self.seed, t)
        idle = self.registry.idle(t)
        free = [i for i in drawn if i in idle]
        if not free and not self.registry.away() and (others := idle):
            free = self.participation.draw(others, self.seed, t)  # those who were drawn are gone
        return free

    def _wait(self, t: int, result: Round) -> None:
        """Until all have answered, or the window is over and enough have."""
        asynchronous = self.method.asynchronous
        window = self.terms.window or (ASYNCHRONOUS_WINDOW if asynchronous else float("inf"))
        end = time.monotonic() + window
        while True:
            self.enrolment.poll()
            self._take_late(t, result)
            waiting = self.registry.pending_of("fit", "rejoin", "recall")
            if not asynchronous:  # late answers will not be used
                waiting = [request for request in waiting if request.version == t]
            if not waiting:
                return
            rejoining = any(request.kind == "rejoin" for request in waiting)
            enough = len(self.arrivals.used) >= self.terms.arrivals
            if time.monotonic() > end and enough and not rejoining:
                return
            time.sleep(self.terms.poll)

    def _take_late(self, t: int, result: Round) -> None:
        """Use late work; first show its client the present, if the method wants that."""
        rejoins = self.method.rejoins
        for client, work in sorted(self.arrivals.late.items()):
            if rejoins:
                result.bytes_down += self.requests.rejoin(client, work.since, t, self._tests(t))
            else:
                self.arrivals.use(client, work)
        self.arrivals.late = {}

    def _evaluate(self) -> float:
        """Every client that is free tests what it would predict with now; returns the seconds."""
        began = time.perf_counter()
        if free := self.registry.idle(self.round):
            self._test(free)
        return time.perf_counter() - began

    def _test(self, ids: list[int]) -> None:
        self.requests.evaluate(ids, self.round, keep=self.round == self.rounds)
        while self.registry.pending_of("evaluate"):
            self.enrolment.poll()
            time.sleep(self.terms.poll)

    # --- after the last round ---

    def without_model(self) -> list[int]:
        """Clients that do not have their personal model as a file yet."""
        has = {i for i, entry in self.registry.clients.items() if entry.kept}
        return [i for i in range(self.terms.clients) if i not in has]

    def deliver(self) -> list[int]:
        """Give clients that were away the last word as they come; returns those who lack it."""
        end = time.monotonic() + self.terms.patience
        while (missing := self.without_model()) and time.monotonic() < end:
            self.enrolment.poll()
            clients = self.registry.clients
            if here := [i for i in missing if i in clients and clients[i].status == "idle"]:
                self._test(here)
            time.sleep(self.terms.poll)
        return missing

    def _columns(self, done: Round | None = None, blank: bool = False) -> Columns:
        for client, sizes in self.registry.sizes().items():
            for part in PARTS:
                self.scores.sizes[part][client] = sizes[part]
        now = {part: column.copy() for part, column in self.scores.sizes.items()}
        late = dict(zip(done.arrived, done.staleness, strict=True)) if done else {}
        known = client_columns(now, done.started if done else [], late)
        return known | (self.scores.blank() if blank else self.scores.snapshot()())

    # --- state ---

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that a restart needs; what is private to clients is on their disks."""
        everything = server_state.saved(self.server) | {
            "metrics": self.scores.state(),
            "start": self.requests.start,
        }
        # `ledger` is what checkpoints have always called it: old runs must stay readable.
        return server_state.on_host(everything), {
            "round": self.round,
            "ledger": self.registry.state(),
        }

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        state = tree.ordered(tree.nest(tensors), self.net.names)
        server_state.restore(self.server, state, self.device)
        self.requests.start = state["start"]
        self.scores.restore(state["metrics"])
        self.round = self.arrivals.round = int(meta["round"])
        self.registry.restore(meta["ledger"])
        self._update_sizes()
        self.requests.recall()

    def server_model(self) -> Tree | None:
        """What all clients share, under the plain module's names; None if they share no model."""
        return server_state.shared_model(self.method, self.server, self._module_state)

    def personal_model(self, client: int) -> Tree:
        raise UserError("personal models stay at the sites; export them there")
