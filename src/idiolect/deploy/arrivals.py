"""What clients send back: checked, kept until a round uses it, and put together for the method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from idiolect.core import tree
from idiolect.core.method import Ups
from idiolect.core.tree import Record, Tree
from idiolect.deploy import messages, validate
from idiolect.deploy.dispatch import Dispatcher
from idiolect.deploy.messages import Payload
from idiolect.deploy.registry import PendingRequest
from idiolect.deploy.scores import Scores, stacked_logs
from idiolect.simulation.outcome import Round


@dataclass(frozen=True)
class Work:
    """What one client sent for one round."""

    since: int  # round in which it was started
    up: Record
    about: dict[str, Any] = field(default_factory=dict)  # samples, losses, logs


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
            reason = validate.wrong_counts(answer.meta)
        if reason is None and "after" in answer.meta:
            reason = validate.wrong_metrics(answer.meta["after"], entry.sizes)
        if reason is not None:
            return reason
        entry.fresh = False
        if "after" in answer.meta:
            self.scores.keep(request.client, "after", answer.meta["after"], entry.sizes)
        record = messages.ordered_like(answer.record, request.expected)
        work = Work(request.since, tree.row(record["up"], 0), answer.meta)
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
            if reason := validate.wrong_metrics(metrics, entry.sizes):
                return reason
        for series, metrics in found.items():
            self.scores.keep(request.client, series, metrics, entry.sizes)
        entry.status, entry.fresh = "idle", False
        return None

    def use(self, client: int, work: Work) -> None:
        """Work goes into the round in progress; its client is free for the next."""
        self.used[client] = work
        self.registry.clients[client].free()

    def ups(self, sizes: Mapping[int, int], t: int, dtype: torch.dtype) -> Ups:
        """The round's work, stacked in the order of client ids."""
        used = dict(sorted(self.used.items()))
        return Ups(
            tree.pile([work.up for work in used.values()]),
            list(used),
            torch.tensor([sizes[i] for i in used], dtype=dtype),
            [work.since for work in used.values()],
            t,
            self.registry.away() if self.asynchronous else [],
        )

    def describe(self, result: Round, server_logs: Tree, dtype: torch.dtype) -> None:
        """Samples, training loss, and what clients and server show of the round."""
        about = [self.used[i].about for i in sorted(self.used)]
        fits = [a for a in about if "samples" in a]
        result.samples = sum(a["samples"] for a in fits)
        losses = [a["train_loss"] for a in fits if a["train_loss"] is not None]
        if losses and len(losses) == len(fits):
            result.train_loss = float(np.mean(losses))
        shown = stacked_logs(about, dtype) | server_logs
        result.logs = {n: v.cpu() for n, v in shown.items()}
