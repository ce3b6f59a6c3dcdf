"""What a client's answer must look like, found by running the method on four made-up samples."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from idiolect.core import tree
from idiolect.core.method import Down, Method
from idiolect.core.tree import Record, Tree
from idiolect.data import Federation
from idiolect.engine.loop import LoopEngine
from idiolect.simulation.requests import Fit


class ExpectedReply:
    """Names, shapes and dtypes of answers; `net` is the server's view of the model."""

    def __init__(
        self, method: Method, model: nn.Module, shape: Sequence[int], classes: int, **how: object
    ):
        x = torch.linspace(0, 1, 4 * int(np.prod(shape))).reshape(4, *shape)
        y = torch.arange(4) % classes
        made_up = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
        data = Federation.from_arrays([made_up], classes=classes)
        self._method = method
        self._engine = LoopEngine(data, model, **how)  # type: ignore[arg-type]
        self.net = self._engine.net

    def of_fit(self, down: Down, start: Tree, version: int) -> Record:
        """A record like the one that a client sends up in that round."""
        row = Down(down.shared, tree.each(lambda x: x[:1], down.each))
        local = self._engine.local([0], 0)
        mine = self._method.client_init(tree.expand(start, 1), local)
        return {"up": Fit([0], version, (row.stacked(1), mine)).do(self._method, self._engine).up}
