"""What the server asks of clients (fit, rejoin, recall, evaluate), what each message holds, and
what its answer must look like."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from idiolect import models
from idiolect.core import tree
from idiolect.core.method import Down, Method, Server
from idiolect.core.task import LearningTask
from idiolect.core.tree import Record, Tree
from idiolect.data import Federation
from idiolect.deploy.client_registry import ClientEntry, PendingRequest
from idiolect.deploy.dispatch import Dispatcher
from idiolect.deploy.sample_kind import SampleKind
from idiolect.engine.loop import LoopEngine
from idiolect.simulation import server_state
from idiolect.simulation.requests import Fit


class ExpectedReply:
    """Names, shapes and dtypes of answers, found by running the method on four made-up samples;
    `net` is the server's view of the model."""

    def __init__(self, method: Method, model: nn.Module, kind: SampleKind, **how: object):
        x = torch.linspace(0, 1, 4 * int(np.prod(kind.shape))).reshape(4, *kind.shape)
        if kind.form.codes:
            x = torch.zeros_like(x)
        if models.wants_tokens(model, kind.shape):
            x = torch.zeros_like(x, dtype=torch.int64)
        y = kind.targets(4)
        made_up = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
        task = LearningTask(kind.task)
        data = Federation.from_arrays([made_up], kind.classes, task=task, form=kind.form)
        self._method = method
        self._engine = LoopEngine(data, model, **how)  # type: ignore[arg-type]
        self.net = self._engine.net

    def of_fit(self, down: Down, start: Tree, version: int) -> Record:
        """A record like the one that a client sends up in that round."""
        row = Down(down.shared, tree.each(lambda x: x[:1], down.each))
        local = self._engine.local([0], 0)
        mine = self._method.client_init(tree.expand(start, 1), local)
        return {"up": Fit([0], version, (row.stacked(1), mine)).do(self._method, self._engine).up}


class ClientRequests:
    """Builds requests from the method and the server's state, and sends them."""

    def __init__(
        self,
        method: Method,
        server: Server,
        start: Tree,
        expected: ExpectedReply,
        dispatcher: Dispatcher,
    ):
        self.method, self.server, self.start, self.expected = method, server, start, expected
        self.dispatcher, self.clients = dispatcher, dispatcher.registry.clients

    def fit(self, ids: Sequence[int], t: int, test: bool) -> int:
        """Ask for local work, tested afterwards if `test`; returns the bytes sent."""
        down = self.method.download(self.server, list(ids))
        expected = self.expected.of_fit(down, self.start, t)
        requests = []
        for k, i in enumerate(ids):
            entry = self.clients[i]
            entry.status, entry.since = "busy", t
            request = PendingRequest("fit", entry.node, t, i, t, expected)
            requests.append((request, self._record(entry, down, k)))
        self.dispatcher.send(requests, test=test)
        return down.nbytes(len(ids))

    def rejoin(self, client: int, since: int, t: int, test: bool) -> int:
        """Show the present to a client whose work is late; it answers with what is used of it."""
        entry = self.clients[client]
        down = self.method.download_late(self.server, [client], [since])
        expected = self._expected_of(client, since)
        request = PendingRequest("rejoin", entry.node, t, client, since, expected)
        self.dispatcher.send([(request, self._record(entry, down, 0))], test=test)
        return down.nbytes(1)

    def recall(self) -> None:
        """After a restart, ask clients that are back for work they may have finished meanwhile."""
        for entry in self.clients.values():
            if entry.recall and entry.status == "idle":
                entry.recall, entry.status = False, "busy"
                expected = self._expected_of(entry.client, entry.since)
                request = PendingRequest(
                    "recall", entry.node, entry.since, entry.client, entry.since, expected
                )
                self.dispatcher.send([(request, {})])

    def evaluate(self, ids: Sequence[int], t: int, keep: bool) -> None:
        """Ask clients to test what they would predict with now, and the shared model if any;
        `keep`: nothing more will come, so they write their personal model to a file."""
        down = self.method.download(self.server, list(ids))
        shared = server_state.whole_model(self.method, self.server)
        # A shared model that is part of the message anyway is named instead of sent twice.
        part = next((n for n, v in down.shared.items() if v is shared), None)
        requests = []
        for k, i in enumerate(ids):
            entry = self.clients[i]
            entry.status = "busy"
            record = self._record(entry, down, k)
            if shared is not None and part is None:
                record["global"] = shared
            requests.append((PendingRequest("evaluate", entry.node, t, i), record))
        self.dispatcher.send(requests, keep=keep, **{"global": part})

    def _record(self, entry: ClientEntry, down: Down, k: int) -> Record:
        """The tensors for one client: what all get, row k, the start at the first contact."""
        record: Record = {
            "shared": down.shared,
            "each": tree.each(lambda x: x[k : k + 1], down.each),
            "start": self.start if entry.fresh else {},
        }
        return {name: part for name, part in record.items() if part}

    def _expected_of(self, client: int, version: int) -> Record:
        down = self.method.download(self.server, [client])
        return self.expected.of_fit(down, self.start, version)
