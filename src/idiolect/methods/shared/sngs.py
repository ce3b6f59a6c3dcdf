"""What the server knows of how similar clients' updates are: SPFL's similarity, stage by stage.

A matrix over client ids for every stage, renewed for the pairs that take part in a refresh.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Server, Tree, Ups
from idiolect.errors import UserError


def layers_of(update: Tree) -> Tree:
    """What the published programs measure: weights, not biases."""
    return {n: x for n, x in update.items() if "bias" not in n.rpartition(".")[2]}


def shares(text: str) -> list[float]:
    """The weights of `method.layer_weights`, as 0.5,0.3,0.2."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise UserError(
            f"method.layer_weights must be numbers like 0.5,0.3, got {text!r}"
        ) from None


def by_layers(layers: Tree, weights: Sequence[float]) -> Tensor:
    """Weighted sum of the layers' cosines `[K, K]`."""
    if len(weights) != len(layers):
        raise UserError(
            f"method.layer_weights has {len(weights)} values but the body has {len(layers)} "
            f"layers ({', '.join(layers)}); give one weight per layer"
        )
    each = [w * tree.cosines({n: x}) for w, (n, x) in zip(weights, layers.items(), strict=True)]
    return torch.stack(each).sum(0)


def learn(server: Server, ups: Ups, stage: int, measured: Tensor, new: float = 1.0) -> None:
    """Keep what was measured of every pair that took part; `new` < 1 is a moving average from 0,
    else a client is alike itself and nobody else until it is measured."""
    n, pairs = max(server.clients) + 1, _pairs(ups)
    unknown = measured.new_zeros(n, n).fill_diagonal_(new == 1)
    known = server["cosine"].get(str(stage), unknown).clone()
    known[pairs] = (1 - new) * known[pairs] + new * measured
    server["cosine"][str(stage)] = known
    server.log_clients(ups.ids, ups.ids, **{f"similarity_{stage}": known[pairs]})


def among(server: Server, ups: Ups, stage: int) -> Tensor:
    """The similarity of those who arrived `[K, K]`; where nobody took part in a refresh yet, a
    client is alike itself alone."""
    known: Tensor | None = server["cosine"].get(str(stage))
    return torch.diag(torch.ones_like(ups.sizes)) if known is None else known[_pairs(ups)]


def _pairs(ups: Ups) -> tuple[Tensor, Tensor]:
    at = tree.beside(ups.ids, ups.sizes)
    return at[:, None], at
