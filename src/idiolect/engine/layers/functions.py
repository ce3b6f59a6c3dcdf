"""Functions of PyTorch that a stack computes another way, wherever a network calls them."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from idiolect.engine.layers import linear
from idiolect.engine.layers.attention import attend
from idiolect.engine.layers.embedding import look_up
from idiolect.engine.layers.stack_function import in_transform


def _calling(function: Any, **ours: Callable[..., Any]) -> FunctionType:
    """PyTorch's own code that calls ours inside, which a mode would not see."""
    return FunctionType(function.__code__, {**vars(F), **ours}, argdefs=function.__defaults__)


_multi_head = _calling(
    F.multi_head_attention_forward,
    scaled_dot_product_attention=attend,
    linear=linear.better,
    _in_projection_packed=_calling(vars(F)["_in_projection_packed"], linear=linear.better),
)

BETTER: dict[Any, Callable[..., Any]] = {
    F.multi_head_attention_forward: _multi_head,
    F.scaled_dot_product_attention: attend,
    F.embedding: look_up,
}


def needed(compute: Callable[[], Any]) -> bool:
    """Whether something calls one of these functions, tried: seeing every call costs time."""
    seen = _Seen()
    with seen:
        compute()
    return seen.better


class _Seen(TorchFunctionMode):
    better = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.better |= func in BETTER
        return func(*args, **(kwargs or {}))


class BetterFunctions(TorchFunctionMode):
    """Inside, calls of these functions in `vmap` or `grad` take the better way."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in BETTER and in_transform():
            func = BETTER[func]
        return func(*args, **(kwargs or {}))
