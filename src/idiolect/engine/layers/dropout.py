"""Dropout on a CPU from a generator of its own, so that clients can train in several threads.

The masks are those PyTorch's own layer draws after the same seed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

from idiolect.engine.layers.stack_function import in_some_vmap

_generator: ContextVar[torch.Generator | None] = ContextVar("dropout_generator", default=None)


@contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """Inside, the layers below draw from a new generator; elsewhere from PyTorch's."""
    before = _generator.set(torch.Generator().manual_seed(seed))
    try:
        yield
    finally:
        _generator.reset(before)


class KeyedDropout(nn.Dropout):
    """The plain layer."""

    @classmethod
    def replaces(cls, layer: nn.Module) -> bool:
        return type(layer) is nn.Dropout

    def forward(self, x: Tensor) -> Tensor:
        generator = _generator.get()
        if generator is None or not self.training or self.p in (0, 1) or in_some_vmap():
            return super().forward(x)
        kept = 1 - self.p
        noise = torch.empty_like(x).bernoulli_(kept, generator=generator).div_(kept)
        return x.mul_(noise) if self.inplace else x * noise
