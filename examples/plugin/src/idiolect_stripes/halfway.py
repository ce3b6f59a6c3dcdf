"""Every client works with a mixture of its own last model and the mean of all."""

from dataclasses import dataclass

from idiolect.core import tree
from idiolect.core.method import Local, Record, Tree, hyper
from idiolect.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Halfway(FedAvg):
    """Every client works with a mixture of its own last model and the mean of all."""

    share: float = hyper(0.5, "share of the client's own model", min=0, max=1)

    name = "halfway"
    paper = "an example"
    year = 2026
    personal_part = "a mixture with the client's own last model"
    also_sent = ("own: all",)  # a client keeps a copy of the model it sends

    def client_init(self, start: Tree, local: Local) -> Record:
        return {"own": start}

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        own = self.train(local, self.personal(down, mine))
        return {"model": own}, {"own": own}

    def personal(self, down: Record, mine: Record) -> Tree:
        return tree.lerp(down["model"], mine["own"], self.share)
