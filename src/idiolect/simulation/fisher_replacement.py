"""How much a model loses when its most informed parameters are replaced (FedAS, Figure 3a).

A parameter's information is its diagonal entry of the empirical Fisher information: its squared
gradient, summed over mini-batches of the client's training samples. The paper does not say what the
parameters are replaced by: zeros here, or numbers drawn with the spread of their tensor.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idiolect.core import rng
from idiolect.core.net import logits_of
from idiolect.data import Federation

State = Mapping[str, Tensor]


def replacement(
    federation: Federation,
    module: nn.Module,
    models: Sequence[State],
    *,
    share: float = 0.05,
    by: Literal["zeros", "noise"] = "zeros",
    batch_size: int = 16,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Test accuracy of every client's model: `intact`, and with `share` of its parameters replaced,
    those with the most information (`top`) or as many by lot (`random`). `models` are state dicts
    of the plain module, as `Result.models` and exported runs have them."""
    found: dict[str, list[float]] = {"intact": [], "top": [], "random": []}
    for i, state in enumerate(models):
        module = deepcopy(module)
        module.load_state_dict(dict(state))
        information = fisher_diagonal(module, federation, i, batch_size)
        count = max(1, round(share * len(information)))
        lot = torch.from_numpy(rng.keyed(seed, "replaced", i).permutation(len(information)))
        found["intact"].append(_accuracy(module, federation, i))
        for name, order in (("top", information.argsort(descending=True)), ("random", lot)):
            with _replaced(module, order[:count], by, seed + i):
                found[name].append(_accuracy(module, federation, i))
    return {name: np.array(values) for name, values in found.items()}


def fisher_diagonal(
    module: nn.Module, federation: Federation, client: int, batch_size: int = 16
) -> Tensor:
    """`[D]`: squared gradient of the mean loss, summed over mini-batches in stored order."""
    module.eval()
    weights = [p for p in module.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in weights), dtype=torch.float64)
    for rows in federation.train[client].split(batch_size):
        loss = F.cross_entropy(_logits(module, federation, rows), federation.y[rows])
        grads = torch.autograd.grad(loss, weights)
        total += torch.cat([g.flatten() for g in grads]).double().square()
    return total


class _replaced:
    """Inside, the module's parameters at these places are others."""

    def __init__(self, module: nn.Module, places: Tensor, by: str, seed: int):
        self._weights = [p for p in module.parameters() if p.requires_grad]
        self._places, self._by, self._seed = places, by, seed

    def __enter__(self) -> None:
        dice = torch.Generator().manual_seed(self._seed)
        self._before = [p.detach().clone() for p in self._weights]
        chosen = torch.zeros(sum(p.numel() for p in self._weights), dtype=torch.bool)
        chosen[self._places] = True
        sizes = [p.numel() for p in self._weights]
        with torch.no_grad():
            for p, here in zip(self._weights, chosen.split(sizes), strict=True):
                other = torch.zeros_like(p)
                if self._by == "noise":
                    other = torch.randn(p.shape, generator=dice).to(p) * p.std(correction=0)
                p.copy_(torch.where(here.view_as(p), other, p))

    def __exit__(self, *exc: object) -> None:
        with torch.no_grad():
            for p, before in zip(self._weights, self._before, strict=True):
                p.copy_(before)


@torch.no_grad()
def _accuracy(module: nn.Module, federation: Federation, client: int) -> float:
    module.eval()
    rows = federation.test[client]
    if not len(rows):
        return float("nan")
    parts = [
        (_logits(module, federation, some).argmax(1) == federation.y[some]).sum()
        for some in rows.split(512)
    ]
    return float(torch.stack(parts).sum()) / len(rows)


def _logits(module: nn.Module, federation: Federation, rows: Tensor) -> Tensor:
    dtype = next(module.parameters()).dtype
    return logits_of(module(federation.inputs(rows, dtype)))
