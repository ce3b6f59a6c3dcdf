"""Trees: dicts of tensors. On the client side every leaf has a leading client axis K.

A *tree* is `dict[str, Tensor]`; a *record* is a tree of trees (what messages and private state are
made of), flattened to `part/name` when it is counted, sent or written to disk. Maths over clients
is matrix algebra on the flattened stack `[K, D]`: similarity is one GEMM, mixing is one GEMM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = dict[str, Tensor]
Record = dict[str, Any]


def apply(fn: Callable[..., Tensor], *trees: Mapping[str, Tensor]) -> Tree:
    """`fn` leaf by leaf; the first tree names the leaves."""
    return {name: fn(*(t[name] for t in trees)) for name in trees[0]}


def add(a: Tree, b: Tree) -> Tree:
    return apply(torch.add, a, b)


def sub(a: Tree, b: Tree) -> Tree:
    return apply(torch.sub, a, b)


def mul(a: Tree, b: Tree) -> Tree:
    return apply(torch.mul, a, b)


def scale(a: Tree, by: Tensor | float) -> Tree:
    """Multiply by a number, or client k by `by[k]`."""
    if isinstance(by, Tensor) and by.ndim:
        return {n: x * column(by, x) for n, x in a.items()}
    return {n: x * by for n, x in a.items()}


def lerp(a: Tree, b: Tree, weight: Tensor | float) -> Tree:
    """`(1 - weight) * a + weight * b`, weight a number or one value per client."""
    return add(scale(a, 1 - weight), scale(b, weight))


def where(mask: Tensor, a: Tree, b: Tree) -> Tree:
    """Client k's tree from `a` where `mask[k]`, else from `b`."""
    return {n: torch.where(column(mask, a[n]), a[n], b[n]) for n in a}


def column(by: Tensor, like: Tensor) -> Tensor:
    """View `[K]` so that it broadcasts over the leaf `like` `[K, ...]`, in its dtype."""
    by = by.to(like.device)
    by = by if by.dtype == torch.bool else by.to(like.dtype)
    return by.view(-1, *([1] * (like.ndim - 1)))


def pick(tree: Mapping[str, Tensor], names: Iterable[str]) -> Tree:
    """The leaves called `names`, in that order, where the tree has them."""
    return {n: tree[n] for n in names if n in tree}


def drop(tree: Mapping[str, Tensor], names: Iterable[str]) -> Tree:
    gone = set(names)
    return {n: x for n, x in tree.items() if n not in gone}


def crop(tree: Tree, like: Tree) -> Tree:
    """The leading part of every leaf of `like`, in its shape."""
    return {n: tree[n][tuple(slice(size) for size in x.shape)] for n, x in like.items()}


def overlay(part: Tree, whole: Tree) -> Tree:
    """Inverse of `crop`: `whole` with the leading part of its leaves taken from `part`."""
    out = dict(whole)
    for name, x in part.items():
        shorter = [d for d, size in enumerate(whole[name].shape) if x.shape[d] < size]
        rest = [
            whole[name].narrow(d, x.shape[d], whole[name].shape[d] - x.shape[d]) for d in shorter
        ]
        out[name] = torch.cat((x, *rest), *shorter) if shorter else x
    return out


def zeros_like(tree: Tree) -> Tree:
    return apply(torch.zeros_like, tree)


def clone(tree: Tree) -> Tree:
    return {n: x.clone(memory_format=torch.contiguous_format) for n, x in tree.items()}


def expand(tree: Tree, k: int) -> Tree:
    """One shared tree seen by K clients, without copying."""
    return {n: x.expand(k, *x.shape) for n, x in tree.items()}


def shows(tree: Tree, shared: Tree) -> bool:
    """Whether every client's row of `tree` is `shared` itself: a view of it, not a copy."""

    def same(x: Tensor, s: Tensor) -> bool:
        one = x.stride(0) == 0 or len(x) == 1
        return one and x.data_ptr() == s.data_ptr() and x[0].stride() == s.stride()

    return tree.keys() == shared.keys() and all(same(tree[n], shared[n]) for n in tree)


def same(a: Tree, b: Tree) -> Tensor:
    """`[K]`: whether client k has the same values in both."""
    alike = torch.ones(len(next(iter(a.values()))), dtype=torch.bool)
    for name, x in a.items():
        if not alike.any():
            break
        alike &= (x == b[name]).reshape(len(x), -1).all(1).cpu()
    return alike


def stack(trees: Sequence[Tree]) -> Tree:
    return {n: torch.stack([t[n] for t in trees]) for n in trees[0]}


def client(tree: Tree, k: int) -> Tree:
    """Client k's leaves, without the client axis."""
    return {n: x[k] for n, x in tree.items()}


def flat(tree: Tree) -> Tensor:
    """The stack as one matrix `w_KD`."""
    return torch.cat([x.reshape(x.shape[0], -1) for x in tree.values()], 1)


def unflat(w_KD: Tensor, like: Tree) -> Tree:
    """Inverse of `flat`, with the names and leaf shapes of `like` (any number of clients)."""
    out: Tree = {}
    at = 0
    for name, x in like.items():
        width = x[0].numel()
        out[name] = w_KD[:, at : at + width].reshape(w_KD.shape[0], *x.shape[1:])
        at += width
    return out


def mix(weight: Tensor, tree: Tree) -> Tree:
    """`sum_j weight[j] * tree_j`, without client axis; or row i of `weight [I, K]` for client i."""
    mixed: Tree = {}
    for name, x in tree.items():
        w = weight.to(x.device, x.dtype)
        mixed[name] = (w @ x.reshape(x.shape[0], -1)).reshape((*w.shape[:-1], *x.shape[1:]))
    return mixed


def dot(a: Tree, b: Tree) -> Tensor:
    """Inner product per client `[K]`."""
    total = [(a[n] * b[n]).reshape(a[n].shape[0], -1).sum(1) for n in a]
    return torch.stack(total).sum(0)


def cosine(a: Tree, b: Tree) -> Tensor:
    """Cosine per client; 0 where one of the two does not move (the angle is undefined there)."""
    norms = dot(a, a).sqrt() * dot(b, b).sqrt()
    return torch.where(norms > 0, dot(a, b) / norms.clamp_min(torch.finfo(norms.dtype).tiny), 0.0)


def cosines(tree: Tree) -> Tensor:
    """Cosine between every two clients `[K, K]`: one GEMM."""
    w_KD = flat(tree)
    unit = w_KD / w_KD.norm(dim=1, keepdim=True).clamp_min(torch.finfo(w_KD.dtype).tiny)
    return unit @ unit.T


def square_distances(a: Tree, b: Tree) -> Tensor:
    """`|a_i - b_j|^2` for every i, j, by differences: cancellation in the `|a|^2 - 2ab + |b|^2`
    form would swamp the small distances the weights depend on."""
    direct = "donot_use_mm_for_euclid_dist"
    return torch.cdist(flat(a), flat(pick(b, a)), compute_mode=direct).square()


# --- records: trees of trees -------------------------------------------------------------------


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
    if len(records) == 1:
        return records[0]
    out: Record = {}
    for key, value in records[0].items():
        parts = [r[key] for r in records]
        out[key] = join(parts) if isinstance(value, Mapping) else torch.cat(parts)
    return out


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
    if not records:
        return {}
    return {
        key: pile([r[key] for r in records])
        if isinstance(value, Mapping)
        else torch.stack([r[key] for r in records])
        for key, value in records[0].items()
    }


def nbytes(record: Record) -> int:
    return sum(x.numel() * x.element_size() for x in leaves(record).values())


class Table:
    """One record per client id: what the server remembers of each client, or the clients' private
    state while they are away. Rows nobody wrote are made by `default`. A small table stays on the
    device its rows come from; one that outgrows `budget` bytes lives in host memory."""

    def __init__(self, default: Record | Callable[[list[int]], Record], budget: int = 4 << 30):
        self._default = default
        self._budget = budget
        self._on_host = False
        self.rows: dict[int, Record] = {}

    def __getitem__(self, ids: Sequence[int]) -> Record:
        missing = [i for i in ids if i not in self.rows]
        if missing:
            self[missing] = self._fresh(missing)
        return pile([self.rows[i] for i in ids])

    def __setitem__(self, ids: Sequence[int], record: Record) -> None:
        if not self._on_host:
            total = nbytes(record) // max(1, len(ids)) * len(self.rows.keys() | set(ids))
            self._on_host = total > self._budget
            if self._on_host:
                self.rows = {i: each(lambda x: x.to("cpu"), r) for i, r in self.rows.items()}
        if self._on_host:
            record = each(lambda x: x.to("cpu"), record)
        for k, i in enumerate(ids):
            self.rows[int(i)] = each(lambda x: x.detach().clone(), row(record, k))

    def _fresh(self, ids: list[int]) -> Record:
        if callable(self._default):
            return self._default(ids)
        return each(lambda x: x.expand(len(ids), *x.shape), self._default)
