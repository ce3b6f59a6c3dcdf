"""Trees: dicts of tensors. On the client side every leaf has a leading client axis K.

A *tree* is `dict[str, Tensor]`; a *record* is a tree of trees (`record.py`; its operations are here
too, for method files). Maths over clients is matrix algebra on the flattened stack `[K, D]`:
similarity is one GEMM, mixing is one GEMM.

Shape letters: K clients of a stack, D numbers of a flattened tree, I and J rows of two stacks that
are compared, M members a client holds of a stack. `engine/engine.py` has those of batches.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from idiolect.core import devices, record

# What method files need of records, under one name with the maths.
Tree = record.Tree
Record = record.Record
leaves, nest, each, join = record.leaves, record.nest, record.each, record.join
ordered, row, pile, nbytes = record.ordered, record.row, record.pile, record.nbytes


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
    by = devices.to_device(by, like.device)
    by = by if by.dtype == torch.bool else by.to(like.dtype)
    return by.view(-1, *([1] * (like.ndim - 1)))


def any_leaf(tree: Mapping[str, Tensor]) -> Tensor:
    """One of the leaves, for its dtype and place."""
    return next(iter(tree.values()))


def beside(values: Tensor | Sequence[Any], like: Tensor) -> Tensor:
    """`values` in the memory that holds `like`: ids, positions and draws a method makes itself."""
    return devices.to_device(torch.as_tensor(values), like.device)


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


def client(tree: Tree, k: int) -> Tree:
    """Client k's leaves, without the client axis."""
    return {n: x[k] for n, x in tree.items()}


def _matrix(leaf: Tensor) -> Tensor:
    return leaf.reshape(leaf.shape[0], -1)


@contextmanager
def _single_precision() -> Iterator[None]:
    """`--dtype tf32` is for networks: models and updates are mixed and compared in float32."""
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


@_single_precision()
def mix(weight: Tensor, tree: Tree) -> Tree:
    """`sum_j weight[j] * tree_j`, without client axis; or row i of `weight [I, K]` for client i."""
    mixed: Tree = {}
    for name, x in tree.items():
        w = weight.to(x.device, x.dtype)
        mixed[name] = (w @ _matrix(x)).reshape((*w.shape[:-1], *x.shape[1:]))
    return mixed


@_single_precision()
def blend(weight: Tensor, stacks: Tree) -> Tree:
    """`sum_m weight[k, m] * stacks[k, m]` for every client k: one GEMM if all hold one stack."""
    if _one_for_all(stacks):
        return mix(weight, client(stacks, 0))
    return {n: torch.einsum("km,km...->k...", weight.to(x.dtype), x) for n, x in stacks.items()}


@_single_precision()
def products(a: Tree, stacks: Tree) -> Tensor:
    """`<a_k, stacks_km>` for every client k and member m `[K, M]`: one GEMM if all hold one."""
    if _one_for_all(stacks):
        return gram(a, client(stacks, 0))
    pairs = ((_matrix(a[n]), stacks[n]) for n in a)
    return reduce(torch.add, (x.reshape(*x.shape[:2], -1) @ g[..., None] for g, x in pairs))[..., 0]


def _one_for_all(stacks: Tree) -> bool:
    """The stack is one that `Down.stacked` shows to every client."""
    return all(x.stride(0) == 0 for x in stacks.values())


@_single_precision()
def gram(a: Tree, b: Tree) -> Tensor:
    """Inner product of every `a_i` and `b_j` `[I, J]`: one GEMM a leaf, nothing copied."""
    return reduce(torch.add, (_matrix(a[n]) @ _matrix(b[n]).T for n in a))


def inner(a: Tree, b: Tree) -> Tensor:
    """Inner product of ONE client's trees, for losses."""
    return torch.stack([(a[n] * b[n]).sum() for n in a]).sum()


def dot(a: Tree, b: Tree) -> Tensor:
    """Inner product per client `[K]`."""
    total = [_matrix(a[n] * b[n]).sum(1) for n in a]
    return torch.stack(total).sum(0)


def cosine(a: Tree, b: Tree) -> Tensor:
    """Cosine per client; 0 where one of the two does not move (the angle is undefined there)."""
    norms = dot(a, a).sqrt() * dot(b, b).sqrt()
    return torch.where(norms > 0, dot(a, b) / norms.clamp_min(torch.finfo(norms.dtype).tiny), 0.0)


def cosines(tree: Tree) -> Tensor:
    """Cosine between every two clients `[K, K]`; 0 where one of the two does not move."""
    inner_KK = gram(tree, tree)
    norm = inner_KK.diagonal().sqrt().clamp_min(torch.finfo(inner_KK.dtype).tiny)
    return inner_KK / norm / norm[:, None]


def square_distances(a: Tree, b: Tree) -> Tensor:
    """`|a_i - b_j|^2` for every i, j, by differences: cancellation in the `|a|^2 - 2ab + |b|^2`
    form would swamp the small distances the weights depend on."""
    direct = "donot_use_mm_for_euclid_dist"
    distances = (torch.cdist(_matrix(a[n]), _matrix(b[n]), compute_mode=direct) for n in a)
    return reduce(torch.add, (d.square() for d in distances))
