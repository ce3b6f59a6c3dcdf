"""FedProx (Li et al., MLSys 2020): FedAvg whose clients are held near the global model.

Client k minimizes h_k(w) = F_k(w) + mu/2 |w - w_t|^2, where w_t is the model it received (Eq. 2).

mu = 0.1 is the value in FedAS's code; FedDWA's comparison uses 1 (searched .01, .1, 1, 10), the
paper .001 to 1. mu = 0, the default of some libraries, is FedAvg. In the paper stragglers send
partial work; here who is late is a matter of the schedule.
"""

from dataclasses import dataclass

from idiolect.core import tree
from idiolect.core.method import Local, Record, hyper
from idiolect.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """One global model; local work pays for leaving it."""

    mu: float = hyper(0.1, "strength of the pull to the received model (0: FedAvg)", min=0)

    name = "fedprox"
    paper = "Li et al., Federated Optimization in Heterogeneous Networks"
    year = 2020

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        anchor = tree.pick(down["model"], local.net.weights)
        pull = (anchor, local.each(self.mu))
        return {"model": self.train(local, down["model"], pull=pull)}, mine
