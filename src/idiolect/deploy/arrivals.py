"""What clients send back: checked, kept until a round uses it, and put together for the method."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Server, Ups
from idiolect.core.tree import Record
from idiolect.deploy import messages, validate
from idiolect.deploy.client_registry import ClientEntry, PendingRequest
from idiolect.deploy.dispatch import Dispatcher
from idiolect.deploy.messages import Payload
from idiolect.simulation import server_state
from idiolect.simulation.outcome import Round
from idiolect.simulation.scores import Scores


@dataclass(frozen=True)
class Work:
    """What one client sent for one round."""

    since: int  # round in which it was started
    up: Record
    about: dict[str, Any] = field(default_factory=dict)  # samples, losses, logs
    expected: dict[str, float] = field(default_factory=dict)  # largest values of such an update


class Arrivals:
    """Work that is here: `used` goes into the round in progress, `late` waits to be looked at."""

    def __init__(self, dispatcher: Dispatcher, scores: Scores, asynchronous: bool):
        self.dispatcher, self.registry = dispatcher, dispatcher.registry
        self.scores, self.asynchronous = scores, asynchronous
        self.round = 0  # in progress
        self.used: dict[int, Work] = {}
        self.late: dict[int, Work] = {}
        for kind in ("fit", "rejoin", "recall"):
            dispatcher.handlers[kind] = self.accept_work
        dispatcher.handlers["evaluate"] = self.accept_scores

    def accept_work(self, request: PendingRequest, answer: Payload) -> str | None:
        """Keep the work of a client; returns the reason if it must not be used."""
        if request.kind == "recall" and answer.meta.get("have") is False:
            self.dispatcher.lose(request, "the client does not have that work", gone=False)
            return None
        entry = self.registry.clients[request.client]
        reason = validate.wrong_record(answer.record, request.expected)
        if reason is None and request.kind != "rejoin":
            reason = validate.wrong_counts(answer.meta, entry.sizes)
        if reason is None and "after" in answer.meta:
            reason = self._wrong_scores(answer.meta["after"], entry)
        if reason is not None:
            return reason
        entry.fresh = False
        if "after" in answer.meta:
            self._keep_scores(entry, "after", answer.meta["after"])
        record = messages.ordered_like(answer.record, request.expected)
        expected = validate.magnitudes(request.expected["up"])
        work = Work(request.since, tree.row(record["up"], 0), answer.meta, expected)
        on_time = request.kind == "fit" and request.version == self.round
        if on_time or request.kind == "rejoin":
            self.use(request.client, work)
        elif self.asynchronous:
            # The client stays busy until a round takes its work, which may come between two.
            self.late[request.client] = work
        else:
            self.registry.note("late", client=request.client, version=work.since,
                               round=self.round + 1)  # fmt: skip
            entry.free()
        return None

    def accept_scores(self, request: PendingRequest, answer: Payload) -> str | None:
        """Keep what a client found when it tested; returns the reason if it makes no sense."""
        entry = self.registry.clients[request.client]
        if answer.record:
            return "an evaluation carries no tensors"
        found = {s: answer.meta[s] for s in ("before", "global") if s in answer.meta}
        for metrics in found.values():
            if reason := self._wrong_scores(metrics, entry):
                return reason
        for series, metrics in found.items():
            self._keep_scores(entry, series, metrics)
        entry.status, entry.fresh = "idle", False
        entry.kept = entry.kept or answer.meta.get("kept") is True
        return None

    def _wrong_scores(self, metrics: Any, entry: ClientEntry) -> str | None:
        return validate.wrong_metrics(metrics, entry.sizes, self.scores.metric)

    def _keep_scores(self, entry: ClientEntry, series: str, metrics: Mapping[str, Any]) -> None:
        for part, found in metrics.items():
            if part == "val" and series == "global":
                continue
            self.scores.sizes[part][entry.client] = entry.sizes[part]
            both = (found[validate.score_key(self.scores.metric)], found["loss"])
            known = [np.nan if n is None else float(n) for n in both]
            score, summed = torch.tensor(known, dtype=torch.float64)[:, None]
            self.scores.write(series, part, [entry.client], score, summed)

    def use(self, client: int, work: Work) -> None:
        """Work goes into the round in progress; its client is free for the next."""
        self.used[client] = work
        self.registry.clients[client].free()

    def ups(self, server: Server, t: int, like: Tensor) -> Ups:
        """The round's work, stacked in the order of client ids."""
        self._drop_enormous()
        used = dict(sorted(self.used.items()))
        record = tree.pile([work.up for work in used.values()])
        since = {client: work.since for client, work in used.items()}
        away = self.registry.away() if self.asynchronous else []
        return server_state.arrivals(server, record, since, t, away, like)

    def _drop_enormous(self) -> None:
        """Refuse updates that are out of all proportion to the others of the round."""
        sizes = {i: validate.magnitudes(work.up) for i, work in self.used.items()}
        for client, mine in sizes.items():
            others = [size for i, size in sizes.items() if i != client]
            work = self.used[client]
            if reason := validate.enormous(mine, others, work.expected):
                del self.used[client]
                node = self.registry.clients[client].node
                request = PendingRequest("fit", node, work.since, client, work.since)
                self.dispatcher.refuse(request, reason)

    def describe(self, result: Round, server: Server, dtype: torch.dtype) -> None:
        """Samples, training loss, and what clients and server show of the round."""
        ids = sorted(self.used)
        about = [self.used[i].about for i in ids]
        fits = [a for a in about if "samples" in a]
        result.samples = sum(a["samples"] for a in fits)
        result.steps = None  # sites do not tell
        losses = [a["train_loss"] for a in fits if a["train_loss"] is not None]
        if losses and len(losses) == len(fits):
            result.train_loss = float(np.mean(losses))
        shown = logs_by_client(
            {i: a.get("logs", {}) for i, a in zip(ids, about, strict=True)}, dtype
        )
        by_id = {name: server.by_id(rows, there) for name, (there, rows) in shown.items()}
        result.logs = {n: v.cpu() for n, v in (by_id | server.logs).items()}


def logs_by_client(
    logs: Mapping[int, dict[str, Any]], dtype: torch.dtype
) -> dict[str, tuple[list[int], Tensor]]:
    """What the method shows at clients: under each name who shows it, and one row for each."""
    shown: dict[str, tuple[list[int], Tensor]] = {}
    for name in dict.fromkeys(str(name) for one in logs.values() for name in one):
        there = [i for i, one in logs.items() if name in one]
        try:
            rows = torch.cat([torch.tensor(logs[i][name], dtype=dtype) for i in there])
        except (TypeError, ValueError, RuntimeError, OverflowError):
            continue  # not needed for learning, and it comes from outside
        if len(rows) == len(there):
            shown[name[:64]] = there, rows
    return shown
