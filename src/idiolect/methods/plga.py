"""PLGA: LGA with a personalized model for every client (asynchronous).

    wp = w_0 + (1 - St) (what - w_0) + St (w_t - w_0) = (1 - St) what + St w_t     (12), (14)

A straggler computes wp when its late work arrives. An on-time client computes it at its next
contact, with its own trained model as `what` and the new global model as `w_1 = w_t`. Between
contacts wp stays as it is. A client only predicts with it: training starts from the global model.

Defaults, and where paper and code disagree: see `lga`. St of Eq. 14 is always the softmax (13).
"""

from dataclasses import dataclass

import torch

from idiolect.core import tree
from idiolect.core.method import Local, Record, Tree
from idiolect.methods.lga import LGA


@dataclass(frozen=True)
class PLGA(LGA):
    """Every client predicts with a mix of its own leap and the present global model."""

    name = "plga"
    personal_part = "the mixed model wp, BatchNorm statistics"

    def client_init(self, start: Tree, local: Local) -> Record:
        mine = super().client_init(start, local)
        return mine | {"wp": mine["w0"], "on_time": torch.zeros_like(local.sizes, dtype=torch.bool)}

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        moved = tree.sub(down["model"], mine["w0"])
        fresh = self._mix(mine["wk"], down["model"], moved, mine, local)
        wp = tree.where(mine["on_time"], fresh, mine["wp"])
        seen = mine["on_time"][:, None]  # of the others no S was asked for
        local.log(**{n: x.masked_fill(~seen, torch.nan) for n, x in local.logs.items()})
        up, kept = super().fit(down, mine, local)
        return up, kept | {"wp": wp, "on_time": torch.ones_like(mine["on_time"])}

    def rejoin(self, down: Record, mine: Record, up: Record, local: Local) -> tuple[Record, Record]:
        what = self.leap(down, mine, local)
        moved = tree.sub(down["first"], mine["w0"])
        wp = self._mix(what, down["model"], moved, mine, local)
        return {"model": what}, mine | {"wp": wp, "on_time": torch.zeros_like(mine["on_time"])}

    def _mix(self, what: Tree, wt: Tree, moved: Tree, mine: Record, local: Local) -> Tree:
        """Eq. 14, with St from the global movement seen by the client."""
        cosine = self.cosine(moved, tree.sub(mine["wk"], mine["w0"]), local.net)
        self.show(cosine, local)
        st = self.softmaxed(cosine)
        return {n: (1 - st[n]) * what[n] + st[n] * wt[n] for n in what}

    def personal(self, down: Record, mine: Record) -> Tree:
        return mine["wp"] | mine["stats"]

    def trained(self, down: Record, up: Record, mine: Record) -> Tree:
        return up["model"] | mine["stats"]
