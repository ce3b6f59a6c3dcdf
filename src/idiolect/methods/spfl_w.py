"""SPFL-w: SPFL that mixes the trained models instead of the updates.

    w_i <- sum_j St_ij w_j',   w_j' what client j trained

Where paper and code disagree: the paper divides by the number of clients once more, which would
shrink the weights every round; neither default nor code does. `variant='code'` is the published
program's: one matrix from the layers' cosines, weighted 0.4, 0.2, 0.2, 0.2; its moving average over
the refreshes, from 0; a uniform mean of the heads. Other defaults are SPFL's.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Server, Tree, Ups, hyper
from idiolect.methods.shared import sngs
from idiolect.methods.spfl import SOFT, SPFL


@dataclass(frozen=True)
class SPFLW(SPFL):
    """One model per client, replaced by the mean of similar clients' models."""

    variant: Literal["paper", "code"] = hyper("paper", "row-stochastic St on all stages, or code's")
    layer_weights: str = hyper("0.5,0.3,0.2", needs="similarity=layers, variant=paper")
    head: Literal["softmax", "own"] = hyper(
        "softmax", "last stage mixed, or own model", needs="similarity!=identity, variant=paper"
    )
    head_temperature: float = hyper(1.0, needs=f"{SOFT}, head=softmax, variant=paper")
    eta = 1.0  # type: ignore[misc]  # models are replaced, there is no step

    name = "spfl_w"

    def _move(self, c: Tensor, w: Tree, update: Tree) -> Tree:
        return tree.mix(c, tree.sub(w, update))

    def _measure(self, server: Server, ups: Ups) -> None:
        if self.variant == "paper":
            super()._measure(server, ups)
            return
        layers = sngs.layers_of(ups["probe"])
        rest = len(layers) - 1  # 0.4, 0.2, 0.2, 0.2 for the paper's four layers
        measured = sngs.by_layers(layers, [0.4] + [0.6 / max(1, rest)] * rest)
        sngs.learn(server, ups, 0, measured, new=0.4)

    def _mixing(self, server: Server, ups: Ups, stage: int, last: bool) -> Tensor:
        if self.variant == "code" and last:
            return ups.sizes.new_full((len(ups), len(ups)), 1 / len(ups))
        return super()._mixing(server, ups, 0 if self.variant == "code" else stage, last)
