"""FedAvgM (Hsu et al., 2019): FedAvg whose server has momentum.

With Delta = w - sum_i n_i/n w_i, the server's pseudo-gradient (Section 4.3):

    v <- beta v + Delta,    w <- w - eta v                    (plain)
                            w <- w - eta (Delta + beta v)     (Nesterov)

The paper uses Nesterov's form (default) and eta = 1. beta = 0.1 is what FedDWA's comparison settled
on (searched 0, .1, .5, .9, .99); the paper itself goes up to .997. BatchNorm
statistics have no momentum (a variance must not overshoot below 0): they are averaged.
"""

from dataclasses import dataclass

from idiolect.core import tree
from idiolect.core.method import Ids, Net, Record, Server, Tree, Ups, hyper
from idiolect.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """The mean of the clients' models is a gradient the server follows with momentum."""

    beta: float = hyper(0.1, "server momentum (0: FedAvg)", min=0, below=1)
    nesterov: bool = hyper(True, "Nesterov's momentum, else plain", needs="beta!=0")
    server_lr: float = hyper(1.0, "server step eta", above=0)

    name = "fedavgm"
    paper = "Hsu et al., Measuring the Effects of Non-Identical Data Distribution"
    year = 2019

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        return {"model": start, "velocity": tree.zeros_like(tree.pick(start, net.weights))}

    def aggregate(self, server: Server, ups: Ups) -> None:
        v, mean = server["velocity"], tree.mix(self.weights(ups), ups["model"])
        w, target = tree.pick(server["model"], v), tree.pick(mean, v)
        velocity = tree.add(tree.scale(v, self.beta), tree.sub(w, target))
        # Written from the mean, so that beta = 0 and eta = 1 is FedAvg to the last bit.
        push = tree.scale(velocity if self.nesterov else v, -self.server_lr * self.beta)
        moved = tree.add(tree.lerp(w, target, self.server_lr), push)
        server["model"], server["velocity"] = mean | moved, velocity
