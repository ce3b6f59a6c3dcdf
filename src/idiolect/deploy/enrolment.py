"""Finds out which nodes are online, which clients they are, and whether they may take part."""

import logging
import time
from collections import Counter
from pathlib import Path
from typing import Any

from idiolect import __version__
from idiolect.deploy import validate
from idiolect.deploy.client_registry import ClientEntry, ClientRegistry, PendingRequest
from idiolect.deploy.dispatch import Dispatcher
from idiolect.deploy.messages import Payload
from idiolect.deploy.sample_kind import SampleKind
from idiolect.deploy.terms import FederationTerms
from idiolect.deploy.transport import Transport
from idiolect.errors import UserError

log = logging.getLogger("idiolect.server")

SECONDS_BETWEEN_GREETINGS = 3.0  # how often the list of online nodes is read
SECONDS_BETWEEN_HELLOS = 10.0  # until a node that was refused is asked again


class Enrolment:
    """The clients of a federation, from the first hello on; `poll` keeps the list true."""

    def __init__(self, terms: FederationTerms, transport: Transport, journal: Path | None = None):
        self.terms, self.transport = terms, transport
        self.registry = ClientRegistry(journal)
        self.dispatcher = Dispatcher(terms, transport, self.registry)
        self.dispatcher.handlers["hello"] = self.admit
        self.kind: SampleKind | None = None  # of all samples; set once enough clients agree
        self._samples: dict[int, SampleKind] = {}  # what each client says of its own
        self._greeted = 0.0
        self._not_before: dict[int, float] = {}  # node -> when it may be asked again

    def wait_for(self, enough: int) -> None:
        """Wait until that many clients are here."""
        end, reported = time.monotonic() + self.terms.patience, -1
        while (here := self._here()) < enough:
            if here != reported:
                reported = here
                log.info("%d of %d clients are here, waiting for %d", here, self.terms.clients,
                         enough)  # fmt: skip
            if time.monotonic() > end:
                raise UserError(
                    f"only {here} of {enough} clients came within {self.terms.patience:.0f} s; "
                    "start the others or lower --min-clients"
                )
            self.poll()
            time.sleep(self.terms.poll)
        if self.kind is None:
            self._agree()

    def _here(self) -> int:
        """Clients that can take part together."""
        present = [i for i, c in self.registry.clients.items() if c.status != "gone"]
        if self.kind is not None:
            return len(present)
        return max(Counter(self._samples[i] for i in present).values(), default=0)

    def _agree(self) -> None:
        """The kind of samples that most clients have is the federation's: no single site decides
        it. The others are turned away."""
        known = sorted(self.registry.clients)
        counts = Counter(self._samples[i] for i in known)
        self.kind = max(counts, key=lambda kind: counts[kind])
        for client in known:
            if reason := self._other_samples(client, self._samples[client]):
                entry = self.registry.clients.pop(client)
                request = PendingRequest("hello", entry.node, 0, client)
                self.dispatcher.refuse(request, reason)

    def dismiss_absurd(self) -> None:
        """A client that states an absurd number of samples would decide every mean alone."""
        for client, entry in self.registry.clients.items():
            reason = validate.absurd_size(client, self.registry.sizes())
            if reason is not None and entry.status == "idle":
                self.dispatcher.refuse(PendingRequest("hello", entry.node, 0, client), reason)
                entry.status = "gone"

    def poll(self) -> None:
        """Take in whatever has happened since the last look."""
        self._greet()
        self.dispatcher.receive()

    def _greet(self) -> None:
        """Ask unknown nodes who they are, and clients that were gone whether they are back."""
        now = time.monotonic()
        if now - self._greeted < SECONDS_BETWEEN_GREETINGS:
            return
        self._greeted = now
        online = set(self.transport.nodes())
        asked = {r.node for r in self.registry.pending_of("hello")}
        for entry in self.registry.clients.values():
            if entry.status == "idle" and entry.node not in online:
                entry.status = "gone"
                self.registry.note("gone", client=entry.client, reason="node is offline")
        for node in sorted(online - asked):
            known = self.registry.at_node(node)
            if (known is None or known.status == "gone") and now >= self._not_before.get(node, 0):
                self._not_before[node] = now + SECONDS_BETWEEN_HELLOS
                client = -1 if known is None else known.client
                self.dispatcher.send([(PendingRequest("hello", node, 0, client), {})])

    def admit(self, request: PendingRequest, hello: Payload) -> str | None:
        """Enter a client into the registry; returns the reason if it may not take part."""
        meta = hello.meta
        reason = validate.wrong_hello(meta, self.terms.clients) or self._unfit(request.node, meta)
        if reason is not None:
            return reason
        client = meta["client"]
        sizes = self.registry.sizes() | {client: meta["sizes"]}
        if reason := validate.absurd_size(client, sizes):
            return reason
        entry = self.registry.clients.get(client)
        if entry is not None and entry.node != request.node and entry.status != "gone":
            return f"client {client} is here already, as another node"
        self._samples[client] = SampleKind.read(meta)
        if entry is None:
            entry = ClientEntry(client, meta["name"], request.node, {})
            self.registry.clients[client] = entry
        entry.node, entry.name, entry.status = request.node, meta["name"], "idle"
        entry.sizes, entry.fresh = dict(meta["sizes"]), meta["fresh"]
        self._not_before.pop(request.node, None)  # only nodes that were refused have to wait
        self.registry.note("enrolled", client=client, name=entry.name, node=str(entry.node))
        return None

    def _unfit(self, node: int, meta: dict[str, Any]) -> str | None:
        """Why this node cannot be this client, or its data does not go with the others'."""
        client = meta["client"]
        if self.terms.nodes and self.terms.nodes.get(str(node)) != client:
            return f"the key of this node does not belong to client {client}"
        asked, has = self.dispatcher.revision, meta.get("revision")
        if asked is not None and has != asked:
            return (
                f"the method has revision {has} at client {client} and {asked} here: it computes "
                f"something else; install idiolect {__version__} there, as here"
            )
        return self._other_samples(client, SampleKind.read(meta))

    def _other_samples(self, client: int, samples: SampleKind) -> str | None:
        difference = None if self.kind is None else self.kind.difference(samples)
        return difference and f"client {client} {difference}"
