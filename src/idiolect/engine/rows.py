"""Rows of trees and records: some clients' part, another order, the part that a step needs."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.local import Rows
from idiolect.core.tree import Tree
from idiolect.engine.steps import Step


def select(what: Any, rows: slice | Tensor | list[int] | None) -> Any:
    """Some clients' part of a tensor `[K, ...]` or of a record of such tensors, in the order of
    `rows`; None means all as they are. `Rows` have no client axis and stay whole."""
    if isinstance(rows, list):
        first, n = rows[0] if rows else 0, len(rows)
        if rows != list(range(first, first + n)):
            chosen = torch.tensor(rows)
            # One row that all clients share stays one.
            return tree.each(lambda x: x[:n] if x.stride(0) == 0 else x[chosen.to(x.device)], what)
        rows = slice(first, first + n)
    if rows is None or isinstance(what, Rows):
        return what
    if isinstance(what, Mapping):
        return {name: select(part, rows) for name, part in what.items()}
    return what[rows]


def copied(stack: Tree, order: Tensor | None) -> Tree:
    """`select`, always in memory of its own."""
    return tree.clone(stack) if order is None else {n: x[order] for n, x in stack.items()}


def put(stack: Tree, who: slice | Tensor, part: Tree) -> None:
    """Write back the rows that `select` gave; those of a slice are views and need no writing."""
    if isinstance(who, Tensor):
        for n, x in part.items():
            stack[n][who] = x


def of_step(extra: Any, step: Step) -> Any:
    """The part of an extra argument of a loss that a step needs."""
    return extra.values[step.at] if isinstance(extra, Rows) else select(extra, step.who)


def only(what: Any) -> Any:
    """The one row of a tensor `[1, ...]` or of a tree of such."""
    if isinstance(what, Mapping):
        return {n: x.squeeze(0) for n, x in what.items()}
    return what.squeeze(0)
