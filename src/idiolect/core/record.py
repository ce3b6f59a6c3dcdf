"""Records: trees of trees, with a row per client in every leaf. The one home of row operations.

Messages and private state are records. They are flattened to `part/name` leaves when they are
counted, sent or written to disk.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Tree = dict[str, Tensor]
Record = dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """One value per training sample of every client, clients one after the other: `[sum n, ...]`.
    Made by `Local.forward`, given back to `Local` as `x` or `extra`."""

    values: Tensor


def leaves(record: Record, prefix: str = "") -> Tree:
    """Flatten a record to `part/name` leaves; an empty part leaves an empty tensor at `part/`."""
    out: Tree = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            inner = leaves(dict(value), f"{prefix}{key}/")
            out |= inner or {f"{prefix}{key}/": torch.empty(0)}
        else:
            out[f"{prefix}{key}"] = value
    return out


def nest(flat_leaves: Mapping[str, Tensor]) -> Record:
    """Inverse of `leaves`."""
    out: Record = {}
    for path, value in flat_leaves.items():
        *parts, name = path.split("/")
        at = out
        for part in parts:
            at = at.setdefault(part, {})
            if not isinstance(at, dict):
                raise ValueError(f"'{part}' in '{path}' is a leaf and a part at once")
        if isinstance(at.get(name), dict):
            raise ValueError(f"'{path}' is a leaf and a part at once")
        if name:
            at[name] = value
    return out


def each(fn: Callable[[Tensor], Tensor], record: Mapping[str, Any]) -> Record:
    """`fn` on every leaf of a record."""
    return {k: each(fn, v) if isinstance(v, Mapping) else fn(v) for k, v in record.items()}


def join(records: Sequence[Record]) -> Record:
    """Records of several groups of clients, one after the other along the client axis."""
    return records[0] if len(records) == 1 else _combined(torch.cat, records)


def ordered(record: Record, names: Sequence[str]) -> Record:
    """Trees with their leaves in the order of `names`: sums over leaves keep their last bit."""
    rank = {n: i for i, n in enumerate(names)}
    if record and all(key in rank for key in record):
        return {key: record[key] for key in sorted(record, key=lambda key: rank[key])}
    return {k: ordered(v, names) if isinstance(v, dict) else v for k, v in record.items()}


def row(record: Record, k: int) -> Record:
    """Client k's part of a record, without the client axis."""
    return each(lambda x: x[k], record)


def pile(records: Sequence[Record]) -> Record:
    """Inverse of `row`: one client's record each, stacked."""
    return _combined(torch.stack, records) if records else {}


def _combined(fn: Callable[[list[Tensor]], Tensor], records: Sequence[Record]) -> Record:
    """`fn` of all records' leaves of each name."""
    out: Record = {}
    for key, value in records[0].items():
        parts = [r[key] for r in records]
        out[key] = _combined(fn, parts) if isinstance(value, Mapping) else fn(parts)
    return out


def nbytes(record: Record) -> int:
    return sum(x.numel() * x.element_size() for x in leaves(record).values())


def select(what: Any, rows: slice | Tensor | list[int] | None) -> Any:
    """Some clients' part of a tensor `[K, ...]` or of a record of such tensors, in the order of
    `rows`; None means all as they are. `Rows` have no client axis and stay whole."""
    if isinstance(rows, list):
        first, n = rows[0] if rows else 0, len(rows)
        if rows != list(range(first, first + n)):
            chosen = torch.tensor(rows)
            # One row that all clients share stays one.
            return each(lambda x: x[:n] if x.stride(0) == 0 else x[chosen.to(x.device)], what)
        rows = slice(first, first + n)
    if rows is None or isinstance(what, Rows):
        return what
    if isinstance(what, Mapping):
        return {name: select(part, rows) for name, part in what.items()}
    return what[rows]


def copied(stack: Tree, order: Tensor | None) -> Tree:
    """`select`, always in memory of its own."""
    if order is None:
        return {n: x.clone(memory_format=torch.contiguous_format) for n, x in stack.items()}
    return {n: x[order] for n, x in stack.items()}


def put(stack: Tree, who: slice | Tensor, part: Tree) -> None:
    """Write back the rows that `select` gave; those of a slice are views and need no writing."""
    if isinstance(who, Tensor):
        for n, x in part.items():
            stack[n][who] = x


def only(what: Any) -> Any:
    """The one row of a tensor `[1, ...]` or of a tree of such."""
    if isinstance(what, Mapping):
        return {n: x.squeeze(0) for n, x in what.items()}
    return what.squeeze(0)
