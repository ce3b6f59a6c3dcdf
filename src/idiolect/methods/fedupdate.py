"""FedUpdate, as SPFL's Table 1 compares it: FedAvg, and one more mini-batch step after averaging.

The stepped models are what is tested, and also where the next round's training starts; so nothing
is forgotten, unlike fine-tuning, and the server averages models that took the extra step.

Defaults are those of SPFL's baselines: plain mean, lr 0.01, batches of 128, weight decay 1e-4, 100
rounds. There all clients take part in every round; here a client that was away steps from what it
receives now.
"""

from dataclasses import dataclass
from typing import Any, Literal

from idiolect.core.method import Local, Record, Tree, hyper
from idiolect.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedUpdate(FedAvg):
    """FedAvg whose clients step from the mean before they predict and before they train."""

    batch_size: int | Literal["full"] = hyper(128)
    weight_decay: float = hyper(1e-4)
    weighting: Literal["samples", "uniform"] = hyper("uniform")
    update_steps: int = hyper(1, "mini-batch steps after averaging (0: FedAvg)", min=0)

    name = "fedupdate"
    paper = "baseline of Personalized Heterogeneous FL with Gradient Similarity"
    year = 2022
    personal_part = "the whole model, a step away from the mean"
    rounds_default = 100

    @property
    def revision(self) -> int:
        return 2 if self.keep_optimizer else 1  # it stepped further than the model that was tested

    def adapt(self, params: Tree, local: Local) -> Tree:
        return self._update(params, local)

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        return super().fit(down | {"model": self._update(down["model"], local)}, mine, local)

    def _update(self, params: Tree, local: Local) -> Tree:
        """The step after averaging: on the same mini-batch, and by a new optimizer, when the client
        is tested and when its next round starts."""
        if local.round == 0 or not self.update_steps:  # nothing has been averaged yet
            return params
        seen = (local.round - 1) * self.update_steps
        how: dict[str, Any] = {"steps": self.update_steps, "start": seen, "purpose": "update"}
        return self.train(local, params, keep=False, **how)
