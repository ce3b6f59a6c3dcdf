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

MAX_TIMES_ASKED = 6
SECONDS_TO_ASK = 2.0  # with less time left, asking again is in vain
PATIENT = 3.0  # times as long as the slowest answer so far, a message is not taken for lost

# Uses an answer whose sender, experiment and version are right; returns why it is not used.
Handler = Callable[[PendingRequest, Payload], str | None]


class Dispatcher:
    """Requests out, answers in; what is wrong, refused or overdue is noted in the registry."""

    def __init__(self, terms: FederationTerms, transport: Transport, registry: ClientRegistry):
        self.terms, self.transport, self.registry = terms, transport, registry
        self.settings: dict[str, Any] = {}  # what a client must know to build method and model
        self.revision: int | None = None  # of the method here; None: not known yet
        self.handlers: dict[str, Handler] = {}  # by kind of request
        self._slowest: dict[str, float] = {}  # seconds until an answer came, by kind

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
                "revision": self.revision,
            }
            if notice := self.registry.notices.pop(request.node, None):
                meta["notice"] = notice
            request.payload = Payload(meta | more, record)
            outgoing.append((request.node, request.payload))
        limit = max((messages.max_bytes(r.expected) for r, _ in requests), default=0)
        self.transport.allow(limit)
        ids = self.transport.send(outgoing, self.terms.timeout)
        for (request, _), message in zip(requests, ids, strict=True):
            now = time.monotonic()
            request.deadline = now + self.terms.timeout
            request.ask_again = now + self._until_asked_again(request)
            if message is None:
                self.lose(request, "the message could not be sent", gone=True)
            else:
                request.message = message
                self.registry.pending[message] = request

    def receive(self) -> None:
        """Take in the answers that have arrived, ask again for those that may be lost, and give up
        the requests that are overdue."""
        limits = {m: messages.max_bytes(r.expected) for m, r in self.registry.pending.items()}
        for reply in self.transport.collect(list(limits), limits):
            request = self.registry.pending.pop(reply.message_id, None)
            if request is None:
                if reply.malformed:  # it answers nothing that was asked
                    note = {"node": str(reply.node), "reason": reply.problem}
                    self.registry.note("turned away", **note)
                continue
            failed = reply.payload is None and not reply.malformed
            if failed and request in self.registry.requests():
                continue  # it was asked more than once, and another answer may come
            if reply.mislaid:
                self._repeat_or_give_up(request, reply.problem)
                continue
            self.registry.settle(request)
            if reply.payload is not None and reply.message_id == request.message:
                took = time.monotonic() - (request.deadline - self.terms.timeout)
                self._slowest[request.kind] = max(took, self._slowest.get(request.kind, 0.0))
            self._take(request, reply)
        now = time.monotonic()
        for request in self.registry.requests():
            if now > request.deadline:
                self._give_up(request)
            elif now > request.ask_again and request.asked < MAX_TIMES_ASKED:
                self._repeat(request, "no answer yet")

    def _until_asked_again(self, request: PendingRequest) -> float:
        """Seconds; work that takes long everywhere is not asked for twice."""
        slow = PATIENT * self._slowest.get(request.kind, 0.0)
        return float(max(self.terms.repeat * 2 ** (request.asked - 1), slow))

    def _give_up(self, request: PendingRequest) -> None:
        self.registry.settle(request)
        reason = f"no answer within {self.terms.timeout:.0f} s"
        self.lose(request, reason, gone=True, waited=True)

    def _repeat_or_give_up(self, request: PendingRequest, reason: str) -> None:
        """The network does not have it any more: it was lost, or its time is over."""
        left = request.deadline - time.monotonic()
        if left > SECONDS_TO_ASK and request.asked < MAX_TIMES_ASKED:
            self._repeat(request, reason)
        else:
            self._give_up(request)

    def _repeat(self, request: PendingRequest, reason: str) -> None:
        """Ask again: a site answers a request it has done already from its disk."""
        assert request.payload is not None
        left = max(SECONDS_TO_ASK, request.deadline - time.monotonic())
        request.asked += 1
        request.ask_again = time.monotonic() + self._until_asked_again(request)
        self._note("asked again", request, reason)
        (message,) = self.transport.send([(request.node, request.payload)], left)
        if message is not None:
            self.registry.pending[message] = request

    def _take(self, request: PendingRequest, reply: Reply) -> None:
        if reply.payload is None:
            if reply.malformed:
                self.refuse(request, reply.problem, waited=reply.stalled)
            else:
                self.lose(request, reply.problem, gone=reply.unavailable)
            return
        try:
            reason = self._use(request, reply)
        except Exception as error:
            # Whatever a site thinks of sending, it costs that site its answer and nobody else.
            log.exception("an answer of client %s cannot be used", request.client)
            reason = f"it cannot be used ({type(error).__name__})"
        if reason is not None:
            self.refuse(request, reason)
        elif request.client in self.registry.clients and request.kind != "hello":
            self.registry.clients[request.client].delivered()

    def _use(self, request: PendingRequest, reply: Reply) -> str | None:
        """Pass an answer on to its handler; returns the reason if it must not be used."""
        assert reply.payload is not None
        meta = reply.payload.meta
        if request.kind == "hello" and type(meta.get("client")) is int:
            request.client = meta["client"]
        reason = validate.wrong_reply(reply.payload, request, reply.node, self.terms.experiment)
        if reason is None and "refused" in meta:
            text = str(meta["refused"])[:200]
            if request.kind == "hello":
                return f"the client says: {text!r}"
            if "starting point is needed" in text and request.client in self.registry.clients:
                self.registry.clients[request.client].fresh = True
            self.lose(request, f"the client says: {text!r}", gone=False)
            return None
        return reason or self.handlers[request.kind](request, reply.payload)

    def refuse(self, request: PendingRequest, reason: str, waited: bool = False) -> None:
        """Do not use this answer; its client may take part in the next round again, and is told."""
        reason = messages.printable(reason[:300])
        log.warning("refused %s of client %s: %s", request.kind, request.client, reason)
        self._note("refused", request, reason)
        self.tell(request.node, f"your {request.kind} of round {request.version + 1} was "
                                f"refused: {reason}")  # fmt: skip
        self._free(request, gone=False, waited=waited)

    def lose(self, request: PendingRequest, reason: str, gone: bool, waited: bool = False) -> None:
        """Note that no answer will come; `gone`: nor will the client, until it says hello."""
        reason = messages.printable(reason[:300])
        if request.kind != "hello":
            log.warning("no %s from client %s: %s", request.kind, request.client, reason)
        self._note("lost", request, reason)
        if waited:
            self.tell(request.node, f"{request.kind} of round {request.version + 1}: {reason}")
        self._free(request, gone, waited)

    def tell(self, node: int, words: str) -> None:
        """Have a site show this on its own terminal; it travels with the next request."""
        self.registry.notices[node] = words

    def _note(self, what: str, request: PendingRequest, reason: str) -> None:
        self.registry.note(what, kind=request.kind, client=request.client, node=str(request.node),
                           version=request.version, reason=reason)  # fmt: skip

    def _free(self, request: PendingRequest, gone: bool, waited: bool = False) -> None:
        entry = self.registry.clients.get(request.client)
        if entry is not None and entry.node == request.node and request.kind != "hello":
            entry.free(gone)
            if waited:
                entry.rest(request.version)
