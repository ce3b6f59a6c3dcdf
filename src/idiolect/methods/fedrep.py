"""FedRep (Collins et al., ICML 2021): exploiting shared representations.

FedPer whose client trains in turns: the head for `head_epochs` under the received body, then the
body for `epochs` under the new head (Algorithm 1). With `head_epochs` 0 the head stays frozen at
its start: FedBABU without fine-tuning.

Where paper and code disagree: Algorithm 1 averages bodies uniformly, the code by sample count
(default). The code's weight decay of 1e-4 on weights (not biases) is not in the paper; none here.
Sampled clients are tested before the next round as they are; the code's last round, head training
on every client, is one more `fit`.
"""

from dataclasses import dataclass
from typing import Literal

from idiolect.core import tree
from idiolect.core.method import Local, Record, hyper
from idiolect.methods.fedper import FedPer


@dataclass(frozen=True)
class FedRep(FedPer):
    """Many epochs for the personal head, few for the shared body."""

    epochs: int = hyper(1, "passes over the data for the body, after the head")
    head_epochs: int = hyper(10, "passes over the data for the head, before the body", min=0)
    batch_size: int | Literal["full"] = hyper(10)
    momentum: float = hyper(0.5, "momentum of local SGD, forgotten after every phase")

    name = "fedrep"
    paper = "Collins et al., Exploiting Shared Representations for Personalized FL"
    year = 2021
    rounds_default = 100

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        base, own = down["base"], mine["own"]
        model = base | own
        if self.head_epochs:
            epochs = self.head_epochs
            model = self.train(local, model, train=own, epochs=epochs, steps=0, purpose="head")
        model = self.train(local, model, train=base)
        return {"base": tree.pick(model, base)}, {"own": tree.pick(model, own)}
