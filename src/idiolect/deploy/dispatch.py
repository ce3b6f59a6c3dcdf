"""Sends requests and passes the answers that can be trusted to whoever handles their kind."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from idiolect.core.tree import Record
from idiolect.deploy import messages, validate
from idiolect.deploy.client_registry import ClientRegistry, PendingRequest
from idiolect.deploy.messages import Payload
from idiolect.deploy.terms import FederationTerms
from idiolect.deploy.transport import Reply, Transport

log = logging.getLogger("idiolect.server")

# Uses an answer whose sender, experiment and version are right; returns why it is not used.
Handler = Callable[[PendingRequest, Payload], str | None]


class Dispatcher:
    """Requests out, answers in; what is wrong, refused or overdue is noted in the registry."""

    def __init__(self, terms: FederationTerms, transport: Transport, registry: ClientRegistry):
        self.terms, self.transport, self.registry = terms, transport, registry
        self.settings: dict[str, Any] = {}  # what a client must know to build method and model
        self.handlers: dict[str, Handler] = {}  # by kind of request

    def send(self, requests: Sequence[tuple[PendingRequest, Record]], **more: Any) -> None:
        """Send requests with their tensors; one that cannot be sent is lost at once."""
        outgoing = []
        for request, record in requests:
            meta = {
                "kind": request.kind,
                "experiment": self.terms.experiment,
                "version": request.version,
                "since": request.since,
                "config": self.settings,
            }
            outgoing.append((request.node, Payload(meta | more, record)))
        ids = self.transport.send(outgoing, self.terms.timeout)
        for (request, _), message in zip(requests, ids, strict=True):
            request.deadline = time.monotonic() + self.terms.timeout
            if message is None:
                self.lose(request, "the message could not be sent", gone=True)
            else:
                self.registry.pending[message] = request

    def receive(self) -> None:
        """Take in the answers that have arrived; give up the requests that are overdue."""
        pending = self.registry.pending
        limits = {m: messages.max_bytes(r.expected) for m, r in pending.items()}
        for reply in self.transport.collect(list(pending), limits):
            request = pending.pop(reply.message_id, None)
            if request is not None:
                self._take(request, reply)
        for message in self.registry.overdue():
            late = pending.pop(message)
            self.lose(late, f"no answer within {self.terms.timeout:.0f} s", gone=True)

    def _take(self, request: PendingRequest, reply: Reply) -> None:
        if reply.payload is None:
            if reply.malformed:
                self.refuse(request, reply.problem)
            else:
                self.lose(request, reply.problem, gone=reply.unavailable)
            return
        meta = reply.payload.meta
        if request.kind == "hello" and type(meta.get("client")) is int:
            request.client = meta["client"]
        reason = validate.wrong_reply(reply.payload, request, reply.node, self.terms.experiment)
        if reason is None and "refused" in meta:
            text = str(meta["refused"])[:200]
            if "starting point is needed" in text and request.client in self.registry.clients:
                self.registry.clients[request.client].fresh = True
            self.lose(request, f"the client says: {text}", gone=False)
            return
        if reason is None:
            reason = self.handlers[request.kind](request, reply.payload)
        if reason is not None:
            self.refuse(request, reason)

    def refuse(self, request: PendingRequest, reason: str) -> None:
        """Do not use this answer; its client may take part in the next round again."""
        log.warning("refused %s of client %s: %s", request.kind, request.client, reason)
        self._note("refused", request, reason)
        self._free(request, gone=False)

    def lose(self, request: PendingRequest, reason: str, gone: bool) -> None:
        """Note that no answer will come; `gone`: nor will the client, until it says hello."""
        if request.kind != "hello":
            log.warning("no %s from client %s: %s", request.kind, request.client, reason)
        self._note("lost", request, reason)
        self._free(request, gone)

    def _note(self, what: str, request: PendingRequest, reason: str) -> None:
        self.registry.note(what, kind=request.kind, client=request.client, node=str(request.node),
                           version=request.version, reason=reason)  # fmt: skip

    def _free(self, request: PendingRequest, gone: bool) -> None:
        entry = self.registry.clients.get(request.client)
        if entry is not None and entry.node == request.node and request.kind != "hello":
            entry.free(gone)
