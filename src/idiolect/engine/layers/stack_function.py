"""What layers of K clients have in common."""

from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import (
    TransformType,
    get_interpreter_stack,
    is_batchedtensor,
    peek_interpreter_stack,
)
from torch.autograd import Function


class Stacked(Function):
    """A map over stacks: the first axis of every tensor is the client."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.forward = staticmethod(own_outputs(cls.forward))  # type: ignore[method-assign]

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """All arguments are given: without a transform around, PyTorch need not look at the names
        and defaults of `forward`, which takes longer than a small layer."""
        apply = super().apply if in_transform() else super(Function, cls).apply  # type: ignore[misc]
        return apply(*args)

    @classmethod
    def vmap(cls, info: Any, dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        """A further axis of clients (or samples) joins the stack."""
        n = info.batch_size
        joined = []
        for arg, dim in zip(args, dims, strict=True):
            if isinstance(arg, Tensor):
                arg = with_clients(arg, dim, n).flatten(0, 1)
            joined.append(arg)
        out = cls.apply(*joined)
        if isinstance(out, tuple):
            return tuple(one.unflatten(0, (n, -1)) for one in out), (0,) * len(out)
        return out.unflatten(0, (n, -1)), 0


def own_outputs(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A map that gives no views of what it made inside: PyTorch would let no network write into
    them, as `F.relu(h, inplace=True)` does."""

    @wraps(forward)
    def wrapped(*args: Any) -> Any:
        out = forward(*args)
        return tuple(map(_own, out)) if isinstance(out, tuple) else _own(out)

    return wrapped


def _own(x: Tensor) -> Tensor:
    return x.detach() if x._is_view() else x


def with_clients(x: Tensor, dim: int | None, clients: int) -> Tensor:
    """`x` with the clients as its first axis; `dim` is where they are, None: `x` is the same for
    all."""
    return x.expand(clients, *x.shape) if dim is None else x.movedim(dim, 0)


def in_transform() -> bool:
    """Whether the code runs inside `vmap`, `grad` or the like."""
    return peek_interpreter_stack() is not None


def in_vmap() -> bool:
    """Whether the innermost transform around the code is `vmap`: what it computes will not be
    differentiated again inside."""
    innermost = peek_interpreter_stack()
    return innermost is not None and innermost.key() == TransformType.Vmap


def in_some_vmap() -> bool:
    """Whether any of the transforms around the code is `vmap`."""
    around = get_interpreter_stack() or []
    return any(one.key() == TransformType.Vmap for one in around)


def same_for_all(weight: Tensor, x: Tensor) -> bool:
    """Whether every client has the same (frozen) weights: then one product of all samples is
    better than one of each client's."""
    return is_batchedtensor(x) and not is_batchedtensor(weight)


@cache
def fused() -> Any:
    """Our own GPU kernels, where Triton is installed."""
    if find_spec("triton") is None:
        return None
    return import_module("idiolect.engine.layers.triton_kernels")


@cache
def fused_steps() -> Any:
    """Those that step; only where `fused` has its own."""
    return import_module("idiolect.engine.layers.triton_steps")


@cache
def fused_loss() -> Any:
    """That of the loss; only where `fused` has its own."""
    return import_module("idiolect.engine.layers.triton_loss")


@cache
def fused_norm() -> Any:
    """Those of batch norms; only where `fused` has its own."""
    return import_module("idiolect.engine.layers.triton_norm")


@cache
def fused_pool() -> Any:
    """Those for max-pooling; only where `fused` has its own."""
    return import_module("idiolect.engine.layers.triton_pool")


def precision() -> str:
    """How our kernels multiply: single precision from three TF32 products, or one TF32 product."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"
