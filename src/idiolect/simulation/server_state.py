"""The server of a run: made, saved, restored and shown in one way, simulated or deployed."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from idiolect.core import devices, tree
from idiolect.core.clients import Table
from idiolect.core.method import Ids, Method, Server, Ups
from idiolect.core.net import Net
from idiolect.core.tree import Record, Tree


def new_server(
    method: Method, net: Net, start: Tree, clients: Ids, sizes: dict[int, int]
) -> Server:
    """The server before round 0; `sizes` are the training samples of the clients that are here."""
    state = method.server_init(net, dict(start), list(clients))
    return Server(state, net=net, clients=clients, sizes=sizes)


def tables(server: Server) -> dict[str, Table]:
    """The parts of the state that hold a record per client."""
    return {name: part for name, part in server.items() if isinstance(part, Table)}


def saved(server: Server) -> Record:
    """The state as a record: what a checkpoint holds of a server."""
    apart = tables(server)
    return {
        "server": {name: part for name, part in server.items() if name not in apart},
        "tables": {name: by_name(table.items()) for name, table in apart.items()},
    }


def restore(server: Server, state: Record, device: torch.device) -> None:
    """Continue from `saved`."""
    server |= tree.each(lambda x: devices.to_device(x, device), state["server"])
    for name, rows in state["tables"].items():
        server[name].refill(by_id(rows))


def on_host(record: Record) -> dict[str, Tensor]:
    """Every leaf of a record by its flat name, in host memory of its own: for a file."""
    leaves = tree.leaves(record).items()
    return {name: x.detach().to("cpu").contiguous().clone() for name, x in leaves}


def by_name(rows: Iterable[tuple[int, Record]]) -> Record:
    """Rows by client, as a record: its keys are words."""
    return {str(client): row for client, row in rows}


def by_id(rows: Record) -> dict[int, Record]:
    """Inverse of `by_name`."""
    return {int(client): row for client, row in rows.items()}


def arrivals(
    server: Server,
    record: Record,
    started: Mapping[int, int],
    round: int,
    away: list[int],
    like: Tensor,
) -> Ups:
    """What reached the server: `record` has a row for every client of `started`, which says in
    which round each began; `away` are the start rounds of work still outstanding. Numbers lie
    beside `like`, in its dtype."""
    sizes = torch.tensor([server.sizes[i] for i in started], dtype=like.dtype)
    sizes = devices.to_device(sizes, like.device)
    return Ups(record, list(started), sizes, list(started.values()), round, away)


def whole_model(method: Method, server: Server) -> Tree | None:
    """The model all clients share, if it is a whole one."""
    shared = method.shared(server)
    return shared if shared is not None and set(shared) == set(server.net.names) else None


def shared_model(method: Method, server: Server, module_state: Tree) -> Tree | None:
    """What all clients share, under the plain module's names; None if they share no model."""
    shared = method.shared(server)
    if not shared:
        return None
    whole = exported(server.net, shared, module_state)
    return whole if set(shared) == set(server.net.names) else tree.pick(whole, shared)


def module_values(module: nn.Module) -> Tree:
    """Copies of the plain module's values, in host memory."""
    return {n: v.detach().cpu().clone() for n, v in module.state_dict().items()}


def exported(net: Net, params: Tree, module_state: Tree) -> Tree:
    """A tree that loads into the plain module: under every name a parameter has there; what the
    tree does not hold is as in the module. Nothing in it shares memory with anything else."""
    leaf = {name: net.aliases.get(name, name) for name in module_state}
    trained = {name: params[first] for name, first in leaf.items() if first in params}
    whole = module_state | trained
    return {n: v.detach().cpu().contiguous().clone() for n, v in whole.items()}


def frozen(net: Net, module_state: Tree) -> Tree:
    """What of the module is no leaf of a tree."""
    leaf = {name: net.aliases.get(name, name) for name in module_state}
    return {name: module_state[name] for name, first in leaf.items() if first not in net.names}
