"""The server's rounds: a `Simulation` whose clients are elsewhere.

It has the simulator's interface (`start`, `step`, `state`, `restore`), so `runs.execute` writes the
same run directory. Given who started and who arrived, it gives the simulator's numbers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect import methods, models
from idiolect.core import tree
from idiolect.core.clients import Table
from idiolect.core.method import Down, Method, Server, Ups
from idiolect.core.net import initial_tree
from idiolect.core.tree import Record, Tree
from idiolect.deploy import messages, validate
from idiolect.deploy.dispatch import Desk, Post, Terms
from idiolect.deploy.expected_reply import Pattern
from idiolect.deploy.messages import Letter
from idiolect.deploy.registry import Seat, Task
from idiolect.deploy.scores import Scores, side_by_side
from idiolect.engine import select
from idiolect.errors import UserError
from idiolect.simulation.outcome import Round
from idiolect.simulation.schedule import Participation
from idiolect.simulation.starting_weights import check_complete, load_init

log = logging.getLogger("idiolect.server")

WINDOW = 60.0  # seconds of a round of an asynchronous method


class Hub(Desk):
    """One method on a federation of real sites, round by round."""

    def __init__(
        self, config: dict[str, Any], terms: Terms, post: Post, journal: Path | None = None
    ):
        super().__init__(terms, post, journal)
        self.config, self.rounds, self.seed = config, config["rounds"], config["seed"]
        self.method: Method = methods.build(config["method"])
        self.participation = Participation(**config["participation"])
        self.device, self.dtype = torch.device("cpu"), select.dtype(config["dtype"])
        self.round = 0
        self._arrived: dict[int, tuple[int, Record, dict[str, Any]]] = {}
        self._late: dict[int, tuple[int, Letter]] = {}  # late work that is here, by client
        self.scores = Scores(terms.clients)

    def open(self, config: dict[str, Any]) -> Hub:
        """Build model and server state; the clients' samples have told the model's shape."""
        assert self.shape is not None
        self.config = config
        self.settings = {k: config[k] for k in ("method", "model", "seed", "dtype")}
        model = models.build(config["model"], self.shape, self.classes, self.seed)
        self._module_state = {n: v.detach().cpu() for n, v in model.state_dict().items()}
        how = {"seed": self.seed, "device": self.device, "dtype": self.dtype}
        self.pattern = Pattern(self.method, model, self.shape, self.classes, **how)
        self.start_tree = initial_tree(model, self.pattern.net, self.dtype)
        if config["init"] is not None:
            given, _ = load_init(Path(config["init"]))
            if given is None:
                raise UserError(f"init: {config['init']} holds no server.safetensors")
            check_complete(given, model.state_dict(), config["init"])
            self.start_tree = select.overlay(self.start_tree, given)
        everyone = list(range(self.terms.clients))
        state = self.method.server_init(self.pattern.net, dict(self.start_tree), everyone)
        self.server = Server(state, net=self.pattern.net, clients=everyone, sizes={})
        return self

    # --- rounds ---

    def start(self) -> Round:
        """Round 0: every client tests the starting point."""
        began = time.perf_counter()
        self._enrol()
        self._evaluate()
        seconds = time.perf_counter() - began
        return Round(0, [], [], [], self._columns(), seconds=seconds, seconds_eval=seconds)

    def step(self) -> Round:
        """One round: ask, wait, aggregate, test."""
        began, t = time.perf_counter(), self.round
        self.pump()
        self.wait_for(self.terms.arrivals)
        self._enrol()
        self._arrived = {}
        chosen = self._choose(t)
        self.server.round, self.server.logs = t, {}
        result = Round(t + 1, chosen, [], [], {})
        if chosen:
            self.method.prepare(self.server, chosen)
            self._ask_fit(chosen, t, result)
        self._wait(t, result)
        ups = self._ups(t, result)
        if len(ups) >= self.terms.arrivals or self.method.asynchronous:
            self.method.aggregate(self.server, ups)
        elif len(ups):
            self.ledger.note("too few", round=t + 1, arrived=ups.ids, needed=self.terms.arrivals)
            result.arrived, result.staleness = [], []
        self._add_up(result)
        tested = self._tests(t)
        self.round = t + 1
        if tested:
            result.seconds_eval = self._evaluate()
        result.clients = self._columns(result, blank=not tested)
        result.seconds = time.perf_counter() - began
        log.info(
            "round %d: %d started, %d arrived, %.1f s",
            t + 1,
            len(chosen),
            len(result.arrived),
            result.seconds,
        )
        return result

    def _tests(self, t: int) -> bool:
        return (t + 1) % int(self.config["eval_every"]) == 0 or t + 1 == self.rounds

    def _enrol(self) -> None:
        seats = sorted(self.ledger.seats.items())
        self.server.sizes = {i: seat.sizes["train"] for i, seat in seats}

    def _choose(self, t: int) -> list[int]:
        """Who starts: drawn as the simulator draws, from those who are not busy or gone."""
        drawn = self.participation.draw(sorted(self.ledger.seats), self.seed, t)
        free = [i for i in drawn if self.ledger.seats[i].status == "idle"]
        if not free and not self.ledger.away() and (others := self.ledger.idle()):
            free = self.participation.draw(others, self.seed, t)  # those who were drawn are gone
        return free

    def _ask_fit(self, chosen: list[int], t: int, result: Round) -> None:
        down = self.method.download(self.server, list(chosen))
        result.bytes_down += down.nbytes(len(chosen))
        expected = self.pattern.answer(down, self.start_tree, t)
        requests = []
        for k, i in enumerate(chosen):
            seat = self.ledger.seats[i]
            seat.status, seat.since = "busy", t
            task = Task("fit", seat.node, t, 0.0, i, t, expected)
            requests.append((task, self._parcel(seat, down, k)))
        self.ask(requests, test=self._tests(t))

    def _parcel(self, seat: Seat, down: Down, k: int) -> Record:
        """Client k's message: what all get, its own row, the start at the first contact."""
        record: Record = {
            "shared": down.shared,
            "each": tree.each(lambda x: x[k : k + 1], down.each),
        }
        if seat.fresh:
            record["start"] = self.start_tree
        return {name: part for name, part in record.items() if part}

    def expected(self, client: int, version: int) -> Record:
        down = self.method.download(self.server, [client])
        return self.pattern.answer(down, self.start_tree, version)

    # --- arrivals ---

    def accept(self, task: Task, letter: Letter) -> str | None:
        if task.kind == "evaluate":
            return self._accept_tests(task, letter)
        if task.kind == "recall" and letter.meta.get("have") is False:
            self.lose(task, "the client does not have that work", gone=False)
            return None
        reason = validate.wrong_record(letter.record, task.expected)
        if reason is None and task.kind != "rejoin":
            reason = validate.wrong_counts(letter.meta)
        seat = self.ledger.seats[task.client]
        if reason is None and "after" in letter.meta:
            reason = validate.wrong_metrics(letter.meta["after"], seat.sizes)
        if reason is not None:
            return reason
        letter = Letter(letter.meta, messages.arranged(letter.record, task.expected))
        seat.fresh = False
        if "after" in letter.meta:
            self.scores.keep(task.client, "after", letter.meta["after"], seat.sizes)
        on_time = task.kind == "fit" and task.version == self.round
        if on_time or task.kind == "rejoin":
            self._arrive(seat, task.since, letter)
        elif not self.method.asynchronous:
            self.ledger.note("late", client=seat.client, version=task.since, round=self.round + 1)
            seat.status, seat.since = "idle", -1
        else:
            # It stays busy until a round takes its work: it may have come between two.
            self._late[seat.client] = (task.since, letter)
        return None

    @property
    def _rejoins(self) -> bool:
        return type(self.method).rejoin is not Method.rejoin

    def _arrive(self, seat: Seat, since: int, letter: Letter) -> None:
        self._arrived[seat.client] = (since, tree.row(letter.record["up"], 0), letter.meta)
        seat.status, seat.since = "idle", -1

    def _wait(self, t: int, result: Round) -> None:
        """Until all have answered, or the window is over and enough have."""
        window = self.terms.window or (WINDOW if self.method.asynchronous else float("inf"))
        end = time.monotonic() + window
        while True:
            self.pump()
            self._take_late(t, result)
            waiting = self.ledger.out("fit", "rejoin", "recall")
            if not self.method.asynchronous:  # nobody waits for what will be thrown away
                waiting = [task for task in waiting if task.version == t]
            if not waiting:
                return
            rejoining = any(task.kind == "rejoin" for task in waiting)
            enough = len(self._arrived) >= self.terms.arrivals
            if time.monotonic() > end and enough and not rejoining:
                return
            time.sleep(self.terms.poll)

    def _take_late(self, t: int, result: Round) -> None:
        """Late clients see the present before their work is used, if the method wants that."""
        for client, (since, letter) in sorted(self._late.items()):
            seat = self.ledger.seats[client]
            if not self._rejoins:
                self._arrive(seat, since, letter)
                continue
            down = self.method.download_late(self.server, [client], [since])
            result.bytes_down += down.nbytes(1)
            expected = self.expected(client, since)
            task = Task("rejoin", seat.node, t, 0.0, client, since, expected)
            self.ask([(task, self._parcel(seat, down, 0))], test=self._tests(t))
        self._late = {}

    def _ups(self, t: int, result: Round) -> Ups:
        arrived = dict(sorted(self._arrived.items()))
        result.arrived = list(arrived)
        result.staleness = [t - since for since, _, _ in arrived.values()]
        record = tree.pile([up for _, up, _ in arrived.values()])
        result.bytes_up = tree.nbytes(record)
        sizes = [self.server.sizes[i] for i in arrived]
        away = self.ledger.away() if self.method.asynchronous else []
        return Ups(
            record,
            list(arrived),
            torch.tensor(sizes, dtype=self.dtype),
            [since for since, _, _ in arrived.values()],
            t,
            away,
        )

    def _add_up(self, result: Round) -> None:
        """Samples, training loss and what clients and server show of the round."""
        told = [meta for _, _, meta in self._arrived.values() if "samples" in meta]
        result.samples = sum(meta["samples"] for meta in told)
        losses = [meta["train_loss"] for meta in told if meta["train_loss"] is not None]
        if losses and len(losses) == len(told):
            result.train_loss = float(np.mean(losses))
        shown = side_by_side([self._arrived[i][2] for i in sorted(self._arrived)], self.dtype)
        result.logs = {n: v.cpu() for n, v in (shown | self.server.logs).items()}

    # --- evaluation ---

    def _evaluate(self) -> float:
        """Every client that is free tests what it would predict with now."""
        began = time.perf_counter()
        who = self.ledger.idle()
        if who:
            down = self.method.download(self.server, who)
            shared = self.method.shared(self.server)
            whole = shared is not None and set(shared) == set(self.pattern.net.names)
            part = next((n for n, v in down.shared.items() if whole and v is shared), None)
            requests = []
            for k, i in enumerate(who):
                seat = self.ledger.seats[i]
                seat.status = "busy"
                record = self._parcel(seat, down, k)
                if whole and part is None:
                    record["global"] = shared
                requests.append((Task("evaluate", seat.node, self.round, 0.0, i), record))
            self.ask(requests, **{"global": part})
            while self.ledger.out("evaluate"):
                self.pump()
                time.sleep(self.terms.poll)
        return time.perf_counter() - began

    def _accept_tests(self, task: Task, letter: Letter) -> str | None:
        seat = self.ledger.seats[task.client]
        if letter.record:
            return "an evaluation carries no tensors"
        found = {s: letter.meta[s] for s in ("before", "global") if s in letter.meta}
        for metrics in found.values():
            if reason := validate.wrong_metrics(metrics, seat.sizes):
                return reason
        for series, metrics in found.items():
            self.scores.keep(task.client, series, metrics, seat.sizes)
        seat.status, seat.fresh = "idle", False
        return None

    def _columns(self, done: Round | None = None, blank: bool = False) -> dict[str, np.ndarray]:
        sizes = {i: seat.sizes for i, seat in self.ledger.seats.items()}
        return self.scores.columns(sizes, done, blank)

    # --- state ---

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that a restart needs; what is private to clients is on their disks."""
        tables = {k: v for k, v in self.server.items() if isinstance(v, Table)}
        everything = {
            "server": {k: v for k, v in self.server.items() if k not in tables},
            "tables": {k: {str(i): r for i, r in v.items()} for k, v in tables.items()},
            "metrics": self.scores.state(),
            "start": self.start_tree,
        }
        host = {
            n: v.detach().cpu().contiguous().clone() for n, v in tree.leaves(everything).items()
        }
        return host, {"round": self.round, "ledger": self.ledger.state()}

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        state = tree.ordered(tree.nest(tensors), self.pattern.net.names)
        self.server |= state["server"]
        for key, rows in state["tables"].items():
            self.server[key].refill({int(i): row for i, row in rows.items()})
        self.start_tree = state["start"]
        self.scores.restore(state["metrics"])
        self.round = int(meta["round"])
        self.ledger.restore(meta["ledger"])
        self._enrol()
        for seat in self.ledger.seats.values():
            if seat.recall and seat.status == "idle":
                seat.recall = False
                self._recall(seat)

    def server_model(self) -> Tree | None:
        """What all clients share, under the plain module's names; None if they share no model."""
        shared = self.method.shared(self.server)
        if shared is None:
            return None
        params = {n: v.detach().cpu().clone() for n, v in shared.items()}
        whole = set(shared) == set(self.pattern.net.names)
        return dict(self._module_state) | params if whole else params

    def personal_model(self, client: int) -> Tree:
        raise UserError("personal models stay at the sites; export them there")
