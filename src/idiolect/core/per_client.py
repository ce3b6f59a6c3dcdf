"""A hyperparameter that differs between the clients of one stack.

In a sweep the local work of several simulations is done by one method object. A field in which
their methods differ holds a `PerClient` instead of a number. It can be computed with, and
`Local.each` and the learning rate of `Local.sgd` take it. Anything else that is done with it,
asking whether it is zero or handing it to torch, raises `Apart`: those simulations then train in
stacks of their own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn

from torch import Tensor


class Apart(Exception):
    """Local work cannot be shared by clients that differ in these hyperparameters."""

    def __init__(self, names: frozenset[str]):
        super().__init__(f"clients of one stack differ in {', '.join(sorted(names))}")
        self.names = names


def _arithmetic(fn: Callable[[Any, Any], Any], turned: bool = False) -> Any:
    def apply(self: PerClient, other: Any) -> PerClient:
        if isinstance(other, PerClient):
            return PerClient(self.names | other.names, fn(self.values, other.values))
        if not isinstance(other, int | float):
            raise Apart(self.names)
        return PerClient(
            self.names, fn(*((other, self.values) if turned else (self.values, other)))
        )

    return apply


def _refused(self: PerClient, *_: Any) -> NoReturn:
    raise Apart(self.names)


class PerClient:
    """One value for every client id, of the hyperparameters `names`."""

    def __init__(self, names: frozenset[str], values: Tensor):
        self.names, self.values = names, values

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = [*args, *(kwargs or {}).values()]
        raise Apart(frozenset[str]().union(*(g.names for g in given if isinstance(g, cls))))

    __add__, __radd__ = _arithmetic(operator.add), _arithmetic(operator.add, True)
    __sub__, __rsub__ = _arithmetic(operator.sub), _arithmetic(operator.sub, True)
    __mul__, __rmul__ = _arithmetic(operator.mul), _arithmetic(operator.mul, True)
    __truediv__, __rtruediv__ = _arithmetic(operator.truediv), _arithmetic(operator.truediv, True)
    __pow__, __rpow__ = _arithmetic(operator.pow), _arithmetic(operator.pow, True)

    def __neg__(self) -> PerClient:
        return -1 * self  # type: ignore[no-any-return]

    __bool__ = __float__ = __int__ = __index__ = __hash__ = __str__ = __format__ = _refused
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refused
