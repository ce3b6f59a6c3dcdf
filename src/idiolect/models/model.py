"""Model: the declaration of a network that a config names."""

from dataclasses import dataclass
from typing import Any, ClassVar

from idiolect.core.registry import Named
from idiolect.models.blocks import Network, Shape


@dataclass(frozen=True)
class Model(Named):
    """A network by name. Fields are the options of `model:`."""

    section = "model"
    registry: ClassVar[dict[str, type[Any]]] = {}

    def network(self, shape: Shape, classes: int) -> Network:
        """A new network for samples of this shape, with random weights."""
        raise NotImplementedError
