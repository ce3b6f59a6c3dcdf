"""The contract: what a personalized federated learning method is. A complete one:

    from dataclasses import dataclass
    from idiolect.core import tree
    from idiolect.core.method import Down, SgdMethod, hyper

    @dataclass(frozen=True)
    class Halfway(SgdMethod):
        '''Every client works with a mixture of its own last model and the mean of all.'''

        share: float = hyper(0.5, "share of the client's own model", min=0, max=1)
        name = "halfway"

        def server_init(self, net, start, clients):
            return {"mean": start}

        def client_init(self, start, local):
            return {"own": start}

        def download(self, server, who):
            return Down(shared={"mean": server["mean"]})

        def fit(self, down, mine, local):
            own = self.train(local, self.personal(down, mine))
            return {"model": own}, {"own": own}

        def aggregate(self, server, ups):
            server["mean"] = tree.mix(ups.share, ups["model"])

        def personal(self, down, mine):
            return tree.lerp(down["mean"], mine["own"], self.share)

    simulate(Halfway(lr=0.1), federation, module, rounds=10)

The fields of this frozen dataclass are its hyperparameters, its methods are the algorithm. They are
written once for a stack of K clients: every tensor a client holds has a row per client, in front.
The simulator calls them with all clients of a round at once, a real site and the reference engine
with K = 1; nothing in a method knows which. In the order of a round:

    prepare    server                          changes the server when a round starts (optional)
    download   server           -> down        the message to each client
    fit        down, mine, data -> up, mine    the work where the data is
    rejoin     down, mine, up   -> up, mine    when late work arrives (optional)
    aggregate  server, ups                     changes the server
    personal   down, mine       -> the parameters the client predicts with
    adapt      personal, data   -> the same after work on the client's data (optional)

`mine` never leaves the client; `up` is all that does. docs/contract.md tells the rest.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.clients import Table
from idiolect.core.fields import Checked, hyper
from idiolect.core.local import Local, Loss, Trained
from idiolect.core.local_sgd import LocalSgd
from idiolect.core.net import Net
from idiolect.core.record import Rows
from idiolect.core.tree import Record, Tree

__all__ = [
    "Down",
    "Ids",
    "Local",
    "Loss",
    "Method",
    "Net",
    "Record",
    "Rows",
    "Server",
    "SgdMethod",
    "Table",
    "Trained",
    "Tree",
    "Ups",
    "cross_entropy",
    "features",
    "hyper",
]

Ids = Sequence[int]  # of clients


def cross_entropy(net: Net, params: Tree, x: Tensor, y: Tensor) -> Tensor:
    """The usual loss of the data's task, one value per sample: cross-entropy where samples have
    classes, the squared error in regression; the user's own where there is one."""
    if net.own_loss is not None:
        return net.own_loss(net, params, x, y)
    return net.loss_of(net(params, x), y)


def features(net: Net, params: Tree, x: Tensor, y: Tensor) -> Tensor:
    """What goes into the head, for `Local.forward`."""
    return net.features(params, x)


@dataclass(frozen=True)
class Down:
    """The message server -> clients: `shared` is the same for all, `each` has a row per client."""

    shared: Record = field(default_factory=dict)
    each: Record = field(default_factory=dict)

    def nbytes(self, k: int) -> int:
        """Bytes on the wire to K clients."""
        return k * tree.nbytes(self.shared) + tree.nbytes(self.each)

    def stacked(self, k: int) -> Record:
        """As the clients see it: every leaf with a leading client axis."""
        return tree.each(lambda x: x.expand(k, *x.shape), self.shared) | self.each


class Server(dict[str, Any]):
    """Server state: trees, tensors and `Table`s by name, with the round and the log channel."""

    def __init__(
        self, state: Record, *, net: Net, clients: Ids, sizes: dict[int, int], round: int = 0
    ):
        super().__init__(state)
        self.net = net
        self.clients = list(clients)  # all that may take part
        self.sizes = sizes  # training samples of those that do, by id
        self.round = round  # 0-based, as t in the papers
        self.expected: float | None = None  # clients per round, where that is known beforehand
        self.logs: Tree = {}

    @property
    def position(self) -> dict[int, int]:
        """Where each client stands in the list of all."""
        return {i: k for k, i in enumerate(self.clients)}

    def log(self, **values: Tensor) -> None:
        """Show something of this round (weights, similarities): it goes into the run."""
        self.logs |= {name: value.detach() for name, value in values.items()}

    def log_clients(self, ids: Ids, columns: Ids | None = None, **values: Tensor) -> None:
        """Show values with a row for each client of `ids`, and a column for each of `columns` if
        given: in the run they stand at the clients' ids, NaN where a client was not there."""
        self.log(**{name: self.by_id(value, ids, columns) for name, value in values.items()})

    def by_id(self, value: Tensor, ids: Ids, columns: Ids | None = None) -> Tensor:
        """Rows (and columns) at the clients' ids."""
        n = max(self.clients, default=-1) + 1
        value = value.detach() if value.is_floating_point() else value.detach().float()
        if columns is not None:
            value = self.by_id(value.T, columns).T
        shown = value.new_full((n, *value.shape[1:]), torch.nan)
        shown[tree.beside(list(ids), value)] = value
        return shown


@dataclass(frozen=True)
class Ups:
    """What reached the server in this round, stacked in the order of `ids`."""

    record: Record
    ids: list[int]
    sizes: Tensor  # training samples of each client
    started: list[int]  # round in which each client began
    round: int
    away: list[int] = field(default_factory=list)  # start rounds of work still outstanding

    def __getitem__(self, name: str) -> Any:
        return self.record[name]

    def __contains__(self, name: str) -> bool:
        return name in self.record

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def staleness(self) -> Tensor:
        """Rounds between start and arrival; 0 is on time."""
        late = [self.round - s for s in self.started]
        return torch.tensor(late, dtype=self.sizes.dtype, device=self.sizes.device)

    @property
    def share(self) -> Tensor:
        """`n_i / sum n` over the arrivals."""
        return self.sizes / self.sizes.sum()


@dataclass(frozen=True)
class Method(Checked, ABC):
    """Base of every method: the algorithm's steps."""

    section: ClassVar[str] = "method"
    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    year: ClassVar[int] = 0
    personal_part: ClassVar[str] = "nothing"  # what is personal, in words
    # What of `mine` (or of `personal`) is sent on purpose: "own: all", "theta: stats"; the other
    # words are weights and base. Everything else in it must never be in a message.
    also_sent: ClassVar[tuple[str, ...]] = ()
    traffic: ClassVar[str] = "2"  # model sizes per client and round, up and down together
    asynchronous: ClassVar[bool] = False  # late work is used (and `aggregate` sees empty rounds)
    needs_classes: ClassVar[bool] = False  # samples must have one class each, see `uses_classes`
    fixed_loss: ClassVar[bool] = False  # its paper writes the loss out, see `has_fixed_loss`
    rounds_default: ClassVar[int] = 50
    trainings: ClassVar[int] = 1  # of a whole model in a round, about: for estimates of time
    adapt_only: ClassVar[frozenset[str]] = frozenset()  # settings that `adapt` alone reads

    @property
    def revision(self) -> int:
        """Raised when what the method computes with these settings changes: runs recorded of an
        earlier one are not taken for its own."""
        return 1

    def over(self, rounds: int) -> Self:
        """The method in a run of so many rounds: the same, unless its settings depend on them."""
        return self

    @property
    def uses_classes(self) -> bool:
        """Whether, with these settings, samples must have one class each."""
        return type(self).needs_classes

    @property
    def has_fixed_loss(self) -> bool:
        """Whether, with these settings, a loss of the user's own would not be trained by."""
        return type(self).fixed_loss

    # --- the algorithm ---

    @abstractmethod
    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        """The server's state before round 0, from the common starting point; `clients` are the ids
        of all that may take part."""

    def client_init(self, start: Tree, local: Local) -> Record:
        """Private state of clients that were never visited; `start` has a row per client."""
        return {}

    def prepare(self, server: Server, who: Ids) -> None:
        """Server work at the start of a round, before anything is sent: changes `server`."""

    @abstractmethod
    def download(self, server: Server, who: Ids) -> Down:
        """The message to clients `who`."""

    def download_late(self, server: Server, who: Ids, since: Ids) -> Down:
        """The message to clients whose late work arrives; `since`: the rounds they began in."""
        return self.download(server, who)

    @abstractmethod
    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        """Local work: returns what is sent up, and the new private state."""

    def rejoin(self, down: Record, mine: Record, up: Record, local: Local) -> tuple[Record, Record]:
        """A client's late work reaches the server: the client sees the present `down` first."""
        return up, mine

    @property
    def rejoins(self) -> bool:
        """Whether clients whose late work arrives do something about it: they are sent a message
        then, and tested."""
        return type(self).rejoin is not Method.rejoin

    @abstractmethod
    def aggregate(self, server: Server, ups: Ups) -> None:
        """Server work on what arrived: changes `server`."""

    @abstractmethod
    def personal(self, down: Record, mine: Record) -> Tree:
        """The parameters each client predicts with, given what the server would send it now."""

    def adapt(self, params: Tree, local: Local) -> Tree:
        """Client-side work between delivery and prediction: from the tree of `personal` to the one
        the client predicts with. Nothing of it is kept or sent; `local.round` is the round that
        comes next."""
        return params

    def trained(self, down: Record, up: Record, mine: Record) -> Tree:
        """The client's model right after its local work, before any aggregation: `personal` with
        what it sends in place of what it received, unless a method says otherwise."""
        return self.personal(down | up, mine)

    def guidance_model(self, down: Record, up: Record, mine: Record) -> Tree | None:
        """A model the client has besides after its local work, which `measure` guidance tests."""
        return None

    def shared(self, server: Server) -> Tree | None:
        """The model, or the part of one, that all clients share."""
        return None


@dataclass(frozen=True)
class SgdMethod(LocalSgd, Method):
    """A method whose clients train by mini-batch SGD, with the hyperparameters of that."""

    def train(self, local: Local, params: Tree, loss: Loss = cross_entropy, **changes: Any) -> Tree:
        """The trees after local SGD with this method's settings."""
        return self.sgd(local, params, loss, **changes).params

    def sgd(
        self, local: Local, params: Tree, loss: Loss = cross_entropy, **changes: Any
    ) -> Trained:
        """Local SGD with this method's settings, and what it did."""
        return local.sgd(loss, params, **(self.batches | self.work(local.round) | changes))
